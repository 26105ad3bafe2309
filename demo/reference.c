#include "demo/reference.h"

#include "client/faclient.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double dot(const double *a, const double *b, int n)
{
	double sum[4] = { 0 };

	for (int i = 0; i < n; i += 4) {
		for (int j = 0; j < 4; j++)
			sum[j] += a[i + j] * b[i + j];
	}
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static int64_t visible(const struct demo_sequence *s, int64_t row)
{
	int64_t n = row + s->n_k - s->n_q + 1;

	if (!s->causal)
		return s->n_k;
	return n > 0 ? n : 0;
}

int demo_reference(const struct demo_sequence *s, double *ret_out, double *ret_magnitude)
{
	double scale = 1 / sqrt(s->dim);
	double *weights;

	weights = malloc(sizeof(double) * (size_t)(s->n_k + 1));
	if (!weights)
		return -ENOMEM;
	for (int h = 0; h < s->heads; h++) {
		int kv = h / (s->heads / s->kv_heads);

		for (int64_t i = 0; i < s->n_q; i++) {
			const double *q = s->q + (i * s->heads + h) * s->dim;
			double *out = ret_out + (i * s->heads + h) * s->dim;
			double *magnitude = ret_magnitude + (i * s->heads + h) * s->dim;
			int64_t n = visible(s, i);
			double max = -INFINITY, sum = 0;

			for (int64_t j = 0; j < n; j++) {
				const double *k = s->k + (j * s->kv_heads + kv) * s->dim;

				weights[j] = scale * dot(q, k, s->dim);
				max = fmax(max, weights[j]);
			}
			for (int64_t j = 0; j < n; j++) {
				weights[j] = exp(weights[j] - max);
				sum += weights[j];
			}
			memset(out, 0, sizeof(double) * (size_t)s->dim);
			memset(magnitude, 0, sizeof(double) * (size_t)s->dim);
			for (int64_t j = 0; j < n; j++) {
				const double *v = s->v + (j * s->kv_heads + kv) * s->dim;
				double weight = weights[j] / sum;

				for (int d = 0; d < s->dim; d++) {
					out[d] += weight * v[d];
					magnitude[d] += weight * fabs(v[d]);
				}
			}
		}
	}
	free(weights);
	return 0;
}

double demo_flops(const struct demo_sequence *s)
{
	double pairs = 0;

	for (int64_t i = 0; i < s->n_q; i++)
		pairs += (double)visible(s, i);
	return 4.0 * pairs * s->heads * s->dim;
}

/* fp16: 5 bits of exponent, 10 of mantissa. */
static double half_to_double(uint16_t half)
{
	int exponent = half >> 10 & 31, mantissa = half & 1023;
	double value;

	if (exponent == 31)
		value = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		value = ldexp(mantissa, -24);
	else
		value = ldexp(1024 + mantissa, exponent - 25);
	return half & 0x8000 ? -value : value;
}

/* @value is in fp16's range. */
static uint16_t double_to_half(double value)
{
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	double magnitude = fabs(value);
	int exponent;

	if (magnitude == 0)
		return sign;
	frexp(magnitude, &exponent); /* magnitude < 2^exponent */
	if (exponent < -13)
		exponent = -13; /* subnormal */
	/* Counts units of the last place; 2048 of them carry into the exponent. */
	return sign + (uint16_t)(((exponent + 13) << 10) +
	                         (int)nearbyint(ldexp(magnitude, 11 - exponent)));
}

double demo_load(const void *data, uint32_t dtype, size_t index)
{
	uint32_t bits;
	float value;

	switch (dtype) {
	case FA_F32:
		return ((const float *)data)[index];
	case FA_F16:
		return half_to_double(((const uint16_t *)data)[index]);
	default:
		bits = (uint32_t)((const uint16_t *)data)[index] << 16;
		memcpy(&value, &bits, sizeof(value));
		return value;
	}
}

void demo_store(void *data, uint32_t dtype, size_t index, double value)
{
	float single = (float)value;
	uint32_t bits;

	switch (dtype) {
	case FA_F32:
		((float *)data)[index] = single;
		break;
	case FA_F16:
		((uint16_t *)data)[index] = double_to_half(value);
		break;
	default:
		/* the upper half of fp32, rounded to nearest even */
		memcpy(&bits, &single, sizeof(bits));
		bits += 0x7fff + (bits >> 16 & 1);
		((uint16_t *)data)[index] = (uint16_t)(bits >> 16);
	}
}
