/* Emulates wgmma. Compiled as C++. */
#include "tests/emulator/fibre.h"
#include "tests/emulator/launch.h"

#define PRODUCTS_MAX 64
#define ACCUMULATORS_MAX 128
#define ACCUMULATORS 3 /* of a thread, with products in flight */

/* A thread's accumulators with products in flight: keeps their values, while NaN is in their
 * place. */
struct accumulators {
	float *d;
	float values[ACCUMULATORS_MAX];
	int n, n_products;
};

struct product {
	struct accumulators *accumulators;
	const uint32_t *a_registers[4]; /* registers of the four threads that share rows; or NULL */
	uint64_t a, b;
	int n;
	bool bf16, add, n_major; /* n_major: B's rows are along n */
};

static struct thread {
	struct accumulators accumulators[ACCUMULATORS];
	struct product products[PRODUCTS_MAX];
	uint32_t n_products, n_run; /* the first n_run have happened */
	uint32_t groups[PRODUCTS_MAX], n_groups;
} threads[THREADS_MAX];

static bool eager; /* products happen at the commit, not at the wait */
static uint64_t n_redone;

void wgmma_begin(void)
{
	eager = random_below(2);
	for (uint32_t i = 0; i < n_threads; i++)
		threads[i].n_groups = threads[i].n_run = 0;
}

void product_thread_end(void)
{
	if (threads[current].n_products)
		DIE("ends with %u products under way", threads[current].n_products);
}

/* All lanes of a warp call this function together; eventually all four warps do. */
void fa_emulated_product(float *d, int n, bool bf16, uint64_t a, const uint32_t *a_registers,
                         uint64_t b, bool n_major, bool add)
{
	const uint64_t *all = fa_emulated_warp_exchange((uint64_t)(uintptr_t)a_registers);
	struct thread *thread = &threads[current];
	struct product *product = &thread->products[thread->n_products++];
	struct accumulators *mine = NULL;

	if (thread->n_products == PRODUCTS_MAX || n / 2 > ACCUMULATORS_MAX || n_threads % 128)
		DIE("%u products of %d columns", thread->n_products, n);
	for (int i = 0; i < ACCUMULATORS; i++)
		if (thread->accumulators[i].d == d)
			mine = &thread->accumulators[i];
	for (int i = 0; i < ACCUMULATORS && !mine; i++)
		if (!thread->accumulators[i].d) {
			mine = &thread->accumulators[i];
			mine->d = d;
			mine->n = n / 2;
			mine->n_products = 0;
			memcpy(mine->values, d, (size_t)n / 2 * sizeof(float));
			memset(d, 0xff, (size_t)n / 2 * sizeof(float));
		}
	if (!mine || mine->n != n / 2)
		DIE("products to too many accumulators");
	mine->n_products++;
	product->accumulators = mine;
	for (int i = 0; i < 4; i++)
		product->a_registers[i] =
			(const uint32_t *)(uintptr_t)all[current % 32 / 4 * 4 + i];
	product->a = a;
	product->b = b;
	product->n = n;
	product->bf16 = bf16;
	product->add = add;
	product->n_major = n_major;
}

/* A table of all fp16 numbers as fp32. */
static const struct table {
	float values[1 << 16];

	table()
	{
		for (uint32_t i = 0; i < 1 << 16; i++)
			values[i] = fa_emulated_from_f16((uint16_t)i);
	}
} f16;

static float element(uint16_t bits, bool bf16)
{
	return bf16 ? __uint_as_float((uint32_t)bits << 16) : f16.values[bits];
}

/* A decoded descriptor: rows of 128 bytes, swizzled. */
struct operand {
	uint32_t start, leading, stride; /* bytes to the next 64 elements, and to the next 8 rows */

	operand(uint64_t bits)
	    : start((uint32_t)(bits & 0x3fff) << 4), leading((uint32_t)(bits >> 16 & 0x3fff) << 4),
	      stride((uint32_t)(bits >> 32 & 0x3fff) << 4)
	{
		if (bits >> 62 != 1)
			DIE("an operand that is not swizzled by 128 bytes");
	}

	/* Reads @n elements, 2 or 8, of row @row, from @column on. */
	void get(uint32_t row, uint32_t column, uint32_t n, bool bf16, float *ret) const
	{
		const char *const at = shared_async(swizzle(start + column / 64 * leading +
		                                            row / 8 * stride + row % 8 * 128 +
		                                            column % 64 * 2),
		                                    2 * n);

		for (uint32_t i = 0; i < n; i++) {
			uint16_t bits;

			memcpy(&bits, at + 2 * i, 2);
			ret[i] = element(bits, bf16);
		}
	}
};

/* Computes this thread's part of a product: rows g and g + 8 of its warp, two of each eight
 * columns. */
static void product_run(const struct product *product)
{
	const uint32_t lane = current % 32, g = lane / 4, t = lane % 4;
	const bool from_registers = product->a_registers[0] != NULL, bf16 = product->bf16;
	struct accumulators *mine = product->accumulators;
	const struct operand operand_b(product->b);
	float a[2][16];

	if (from_registers) {
		for (uint32_t r = 0; r < 2; r++)
			for (uint32_t k = 0; k < 16; k++)
				a[r][k] = element(
					(uint16_t)(product->a_registers[k % 8 / 2][k / 8 * 2 + r] >>
				                   k % 2 * 16),
					bf16);
	} else {
		const struct operand operand_a(product->a);

		for (uint32_t r = 0; r < 2; r++)
			for (uint32_t k = 0; k < 16; k += 8)
				operand_a.get(current % 128 / 32 * 16 + r * 8 + g, k, 8, bf16,
				              &a[r][k]);
	}
	for (int i = 0; i < product->n / 2; i += 4) {
		const uint32_t column = (uint32_t)i * 2 + 2 * t;
		float b[16][2], *const values = &mine->values[i];

		if (product->n_major) {
			for (uint32_t k = 0; k < 16; k++)
				operand_b.get(k, column, 2, bf16, b[k]);
		} else {
			for (uint32_t e = 0; e < 2; e++) {
				float row[16];

				operand_b.get(column + e, 0, 8, bf16, row);
				operand_b.get(column + e, 8, 8, bf16, row + 8);
				for (uint32_t k = 0; k < 16; k++)
					b[k][e] = row[k];
			}
		}
		for (int d = 0; d < 4; d++) {
			float sum = product->add ? values[d] : 0;

			/* Products of two elements are exact in fp32. */
			for (uint32_t k = 0; k < 16; k++)
				sum += a[d / 2][k] * b[k][d % 2];
			values[d] = sum;
		}
	}
}

/* Writes the accumulators' values after the wait. */
static void product_publish(const struct product *product)
{
	struct accumulators *mine = product->accumulators;

	if (--mine->n_products == 0) {
		memcpy(mine->d, mine->values, (size_t)mine->n * sizeof(float));
		mine->d = NULL;
	}
}

/* Runs this thread's products up to @done. A warp's lanes call it together, as they read each
 * other's registers. */
static void products_run(uint32_t done)
{
	struct thread *thread = &threads[current];

	fa_emulated_warp_exchange(0);
	for (uint32_t i = thread->n_run; i < done; i++)
		product_run(&thread->products[i]);
	if (done > thread->n_run)
		thread->n_run = done;
	fa_emulated_warp_exchange(0);
}

void fa_emulated_product_commit(void)
{
	struct thread *thread = &threads[current];

	thread->groups[thread->n_groups++] = thread->n_products;
	if (eager)
		products_run(thread->n_products);
}

void fa_emulated_product_wait(uint32_t pending)
{
	struct thread *thread = &threads[current];
	uint32_t n, done;

	if (thread->n_groups <= pending)
		return;
	n = thread->n_groups - pending;
	done = thread->groups[n - 1];
	products_run(done);
	for (uint32_t i = 0; i < done; i++)
		product_publish(&thread->products[i]);
	memmove(thread->products, thread->products + done,
	        (thread->n_products - done) * sizeof(*thread->products));
	thread->n_products -= done;
	thread->n_run -= done;
	for (uint32_t i = n; i < thread->n_groups; i++)
		thread->groups[i - n] = thread->groups[i] - done;
	thread->n_groups -= n;
}

void fa_emulated_recomputed(void)
{
	n_redone++;
}

uint64_t fa_emulated_take_recomputed(void)
{
	const uint64_t n = n_redone;

	n_redone = 0;
	return n;
}
