#include "daemon/base/loop_spin.h"

#include "common/clock.h"
#include "common/cpu.h"

/* A client that spins, too, has sent its next message by then. */
#define SPIN_NS (50 * FA_NS_PER_US)
/* The loop spins only if messages come this close. */
#define GAP_MAX_NS (100 * FA_NS_PER_US)
#define BACKOFF_MESSAGES 256

static void on_idle(uv_idle_t *idle)
{
	struct fa_loop_spin *spin = idle->data;

	if (fa_now_ns() - spin->last_ns > SPIN_NS) {
		fa_backoff_failed(&spin->backoff, BACKOFF_MESSAGES);
		(void)uv_idle_stop(idle);
	} else if (spin->yields) {
		(void)sched_yield();
	}
}

void fa_loop_spin_init(struct fa_loop_spin *spin, uv_loop_t *loop)
{
	const unsigned int n = fa_cpu_count();

	*spin = (struct fa_loop_spin){ .disabled = n == 1, .yields = n <= FA_CPU_FEW };
	(void)uv_idle_init(loop, &spin->idle);
	spin->idle.data = spin;
}

void fa_loop_spin_note(struct fa_loop_spin *spin)
{
	uint64_t now_ns, gap_ns;

	if (spin->disabled)
		return;
	now_ns = fa_now_ns();
	gap_ns = now_ns - spin->last_ns;
	spin->last_ns = now_ns;
	if (uv_is_active((uv_handle_t *)&spin->idle))
		fa_backoff_succeeded(&spin->backoff);
	else if (fa_backoff_next(&spin->backoff) && gap_ns <= GAP_MAX_NS)
		(void)uv_idle_start(&spin->idle, on_idle);
}
