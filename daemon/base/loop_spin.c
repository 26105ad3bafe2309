#include "daemon/base/loop_spin.h"

#include "common/clock.h"
#include "common/cpu.h"

/* How long to look; a client that spins as well has sent by then, if it sends at all. */
#define SPIN_NS (50 * FA_NS_PER_US)
/* Messages that follow one another as quickly are worth a try: it is what one costs
 * when both sides sleep. */
#define QUICK_NS (100 * FA_NS_PER_US)
/* Messages without a spin after it has spun in vain several times. */
#define SKIPS 256

static void on_idle(uv_idle_t *idle)
{
	struct fa_loop_spin *spin = idle->data;

	if (fa_now_ns() - spin->last_ns > SPIN_NS) {
		fa_backoff_failed(&spin->backoff, SKIPS);
		fa_loop_spin_stop(spin);
	} else if (spin->yields) {
		(void)sched_yield();
	}
}

void fa_loop_spin_init(struct fa_loop_spin *spin, uv_loop_t *loop)
{
	const unsigned int n = fa_cpu_count();

	*spin = (struct fa_loop_spin){ .off = n == 1, .yields = n <= FA_CPU_FEW };
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
		fa_backoff_succeeded(&spin->backoff);
	else if (fa_backoff_next(&spin->backoff) && gap_ns <= QUICK_NS)
		(void)uv_idle_start(&spin->idle, on_idle);
}

void fa_loop_spin_stop(struct fa_loop_spin *spin)
{
	(void)uv_idle_stop(&spin->idle);
}
