/*
 * Checks partial results in global memory, which blocks poll while others store them
 * (kernels/cuda/sm90/paged_reduce.h). A block of the launch sets a place to EMPTY once and fences,
 * before a result is stored there (once) and before the place is polled. Polls sometimes see EMPTY
 * late. Compiled as C++.
 */
#include "tests/emulator/fibre.h"

#include <unordered_map>

struct partial {
	uint32_t block;
	bool fenced; /* the block that set EMPTY has fenced since */
	bool stored; /* a result is stored */
};

static std::unordered_map<const void *, struct partial> words;

void partials_begin(void)
{
	words.clear();
}

void fa_emulated_partial_fence(void)
{
	for (auto &word : words)
		if (word.second.block == blockIdx.x)
			word.second.fenced = true;
}

void fa_emulated_partial_store(void *address, const void *value, uint32_t bytes)
{
	const auto word = words.find(address);

	must_have_awaited("a partial result is cleared or stored");
	if (*(const uint32_t *)value == UINT32_MAX && word != words.end())
		DIE("a partial result is cleared twice");
	else if (*(const uint32_t *)value == UINT32_MAX)
		words[address] = { blockIdx.x, false, false };
	else if (word == words.end())
		DIE("a partial result is stored in a place that was not cleared");
	else if (word->second.stored)
		DIE("a partial result is stored twice");
	else if (!word->second.fenced)
		DIE("a partial result is stored before its block has fenced the cleared place");
	else {
		word->second.stored = true;
		fa_emulated_completion_partial();
	}
	memcpy(address, value, bytes);
}

void fa_emulated_partial_load(const void *address, void *ret_value, uint32_t bytes)
{
	must_have_awaited("a partial result is polled");
	if (words.find(address) == words.end())
		DIE("a partial result is polled in a place that was not cleared");
	memcpy(ret_value, address, bytes);
	if (random_below(16) == 0)
		memset(ret_value, 0xff, bytes);
}
