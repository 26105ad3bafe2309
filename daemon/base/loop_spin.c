#include "daemon/base/loop_spin.h"

#include "common/clock.h"

#include <sched.h>

/* How long to look; a client that spins as well has sent by then, if it sends at all. */
#define SPIN_NS (50 * FA_NS_PER_US)
/* Messages that follow one another as quickly are worth a try: it is what one costs
 * when both sides sleep. */
#define QUICK_NS (100 * FA_NS_PER_US)
/* So often it looks in vain before it leaves so many messages alone. */
#define TRIES 4
#define REST 256

static void on_idle(uv_idle_t *idle)
{
	struct fa_loop_spin *spin = idle->data;

	if (fa_now_ns() - spin->last_ns > SPIN_NS) {
		if (++spin->in_vain >= TRIES) {
			spin->in_vain = 0;
			spin->rest = REST;
		}
		fa_loop_spin_stop(spin);
	} else if (spin->shy) {
		sched_yield();
	}
}

void fa_loop_spin_init(struct fa_loop_spin *spin, uv_loop_t *loop)
{
	cpu_set_t cpus;
	int n = sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1 : CPU_COUNT(&cpus);

	*spin = (struct fa_loop_spin){ .off = n == 1, .shy = n <= 4 };
	(void)uv_idle_init(loop, &spin->idle);
	spin->idle.data = spin;
}

void fa_loop_spin_note(struct fa_loop_spin *spin)
{
	uint64_t now_ns, gap_ns;

	if (spin->off)
		return;
	now_ns = fa_now_ns();
	gap_ns = now_ns - spin->last_ns;
	spin->last_ns = now_ns;
	if (uv_is_active((uv_handle_t *)&spin->idle))
		spin->in_vain = 0;
	else if (spin->rest)
		--spin->rest;
	else if (gap_ns <= QUICK_NS)
		(void)uv_idle_start(&spin->idle, on_idle);
}

void fa_loop_spin_stop(struct fa_loop_spin *spin)
{
	(void)uv_idle_stop(&spin->idle);
}
