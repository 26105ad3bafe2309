#include "daemon/persist/session_store.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC 0x736e6f6973736573ull /* "sessions" */
#define VERSION 1u

enum record_state {
	FREE,
	USED, /* by the daemon that wrote the state */
	LOST, /* resumable: its daemon died, or its connection was lost later */
};

struct fa_session_store_header {
	uint64_t magic;
	uint32_t version, max_records;
	struct fa_session_store_device device;
	uint64_t last_number;
	uint32_t high_records; /* later records were never used */
	uint32_t reserved;
};

struct fa_session_store_record {
	uint32_t state;
	uint32_t uid;
	uint64_t number;
	struct fa_wire_secret secret;
};

#define RECORDS_AT 4096u
#define BYTES (RECORDS_AT + FA_SESSION_STORE_SESSIONS_MAX * sizeof(struct fa_session_store_record))

static_assert(sizeof(struct fa_session_store_header) <= RECORDS_AT, "format");
static_assert(sizeof(struct fa_session_store_record) == 32, "format");

/* One store changes the state. The record must be complete before. */
static void set_state(struct fa_session_store_record *record, enum record_state state)
{
	__atomic_store_n(&record->state, (uint32_t)state, __ATOMIC_RELEASE);
}

static int map(int fd, struct fa_error *error, struct fa_session_store *ret_store)
{
	_fa_cleanup_(fa_freep) struct fa_session_store_wait *waits = NULL;
	void *at;

	/* Untouched pages take no memory. */
	waits = calloc(FA_SESSION_STORE_SESSIONS_MAX, sizeof(*waits));
	if (!waits)
		return fa_fail(error, -ENOMEM, "no memory for the sessions");
	at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return fa_fail(error, -errno, "the sessions cannot be mapped: %m");
	/* Secrets do not go into core dumps. */
	(void)madvise(at, BYTES, MADV_DONTDUMP);
	*ret_store = (struct fa_session_store){
		.header = at,
		.records = (struct fa_session_store_record *)((char *)at + RECORDS_AT),
		.waits = fa_steal_ptr(waits),
		.next_ns = FA_NS_NEVER,
		.scan_ns = FA_NS_NEVER,
	};
	return 0;
}

int fa_session_store_new(const struct fa_session_store_device *device, struct fa_error *error,
                         struct fa_session_store *ret_store, int *ret_fd)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

	r = fa_memfd_new("fad-sessions", BYTES, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "no memory for the sessions: %s",
		               fa_memfd_explain(r, why, sizeof(why)));
	r = map(fd, error, ret_store);
	if (r < 0)
		return r;
	*ret_store->header = (struct fa_session_store_header){
		.magic = MAGIC,
		.version = VERSION,
		.max_records = FA_SESSION_STORE_SESSIONS_MAX,
		.device = *device,
	};
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

static int check(const struct fa_session_store_header *header,
                 const struct fa_session_store_device *device, struct fa_error *error)
{
	if (header->magic != MAGIC || header->version != VERSION ||
	    header->max_records != FA_SESSION_STORE_SESSIONS_MAX ||
	    header->high_records > header->max_records)
		return fa_fail(error, -EBADMSG, "the stored sessions are damaged");
	if (memcmp(&header->device, device, sizeof(*device)) != 0)
		return fa_fail(error, -ESTALE,
		               "the stored sessions belong to another device, of backend %.15s",
		               header->device.backend);
	return 0;
}

int fa_session_store_open(int fd, const struct fa_session_store_device *device,
                          struct fa_error *error, struct fa_session_store *ret_store)
{
	struct fa_session_store store;
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return fa_fail(error, -errno, "the sessions cannot be examined: %m");
	if (st.st_size != (off_t)BYTES)
		return fa_fail(error, -EBADMSG, "the stored sessions are damaged");
	r = map(fd, error, &store);
	if (r < 0)
		return r;
	r = check(store.header, device, error);
	if (r < 0) {
		fa_session_store_close(&store);
		return r;
	}
	for (uint32_t i = 0; i < store.header->high_records; ++i) {
		if (store.records[i].state == FREE)
			continue;
		set_state(&store.records[i], LOST);
		++store.n_lost;
	}
	*ret_store = store;
	return 0;
}

void fa_session_store_close(struct fa_session_store *store)
{
	if (store->header)
		(void)munmap(store->header, BYTES);
	free(store->waits);
	*store = (struct fa_session_store){};
}

uint64_t fa_session_store_last_number(const struct fa_session_store *store)
{
	return store->header->last_number;
}

uint32_t fa_session_store_add(struct fa_session_store *store, uint64_t number, uint32_t uid,
                              const struct fa_wire_secret *secret)
{
	struct fa_session_store_header *header = store->header;
	struct fa_session_store_record *record;
	uint32_t i = store->free_at;

	if (number > header->last_number)
		header->last_number = number;
	while (i < header->high_records && store->records[i].state != FREE)
		++i;
	store->free_at = i;
	if (i == header->max_records)
		return FA_SESSION_STORE_NONE;
	if (i == header->high_records)
		__atomic_store_n(&header->high_records, i + 1, __ATOMIC_RELEASE);
	record = &store->records[i];
	record->uid = uid;
	record->number = number;
	record->secret = *secret;
	set_state(record, USED);
	return i;
}

void fa_session_store_remove(struct fa_session_store *store, uint32_t record)
{
	if (record == FA_SESSION_STORE_NONE)
		return;
	set_state(&store->records[record], FREE);
	store->records[record].secret = (struct fa_wire_secret){};
	if (record < store->free_at)
		store->free_at = record;
}

/* Takes constant time. */
static bool secret_equals(const struct fa_wire_secret *a, const struct fa_wire_secret *b)
{
	return ((a->lo ^ b->lo) | (a->hi ^ b->hi)) == 0;
}

int fa_session_store_resume(struct fa_session_store *store, uint32_t uid,
                            const struct fa_wire_secret *secret, uint64_t now_ns,
                            uint32_t *ret_record, uint64_t *ret_number)
{
	for (uint32_t i = 0; store->n_lost && i < store->header->high_records; ++i) {
		struct fa_session_store_record *record = &store->records[i];

		if (record->state != LOST || record->uid != uid ||
		    !secret_equals(&record->secret, secret))
			continue;
		set_state(record, USED);
		--store->n_lost;
		/* The rest of the grace time is for the next loss. */
		if (now_ns < store->waits[i].until_ns)
			store->waits[i].left_ns += store->waits[i].until_ns - now_ns;
		*ret_record = i;
		*ret_number = record->number;
		return 0;
	}
	return -ENOENT;
}

static void start_wait(struct fa_session_store *store, uint32_t record, uint64_t now_ns)
{
	struct fa_session_store_wait *wait = &store->waits[record];
	uint64_t ns = wait->left_ns < store->grace_ns ? wait->left_ns : store->grace_ns;

	wait->left_ns -= ns;
	wait->until_ns = now_ns + ns;
	if (wait->until_ns < store->next_ns)
		store->next_ns = wait->until_ns;
	/* The scan may have passed this record already. */
	if (wait->until_ns < store->scan_ns)
		store->scan_ns = wait->until_ns;
}

void fa_session_store_start_grace(struct fa_session_store *store, uint64_t now_ns,
                                  uint64_t grace_ns, uint64_t total_ns)
{
	store->grace_ns = grace_ns;
	for (uint32_t i = 0; i < store->header->high_records; ++i) {
		if (store->records[i].state != LOST)
			continue;
		store->waits[i].left_ns = total_ns;
		start_wait(store, i, now_ns);
	}
}

void fa_session_store_set_lost(struct fa_session_store *store, uint32_t record, uint64_t now_ns)
{
	set_state(&store->records[record], LOST);
	++store->n_lost;
	start_wait(store, record, now_ns);
}

bool fa_session_store_is_lost(const struct fa_session_store *store, uint64_t number)
{
	for (uint32_t i = 0; store->n_lost && i < store->header->high_records; ++i)
		if (store->records[i].state == LOST && store->records[i].number == number)
			return true;
	return false;
}

bool fa_session_store_expire(struct fa_session_store *store, uint64_t now_ns, uint64_t *ret_number)
{
	if (!store->n_lost || now_ns < store->next_ns)
		return false;
	while (store->scan_at < store->header->high_records) {
		const uint32_t i = store->scan_at++;

		if (store->records[i].state != LOST)
			continue;
		if (now_ns < store->waits[i].until_ns) {
			if (store->waits[i].until_ns < store->scan_ns)
				store->scan_ns = store->waits[i].until_ns;
			continue;
		}
		*ret_number = store->records[i].number;
		fa_session_store_remove(store, i);
		--store->n_lost;
		return true;
	}
	store->next_ns = store->scan_ns;
	store->scan_ns = FA_NS_NEVER;
	store->scan_at = 0;
	return false;
}
