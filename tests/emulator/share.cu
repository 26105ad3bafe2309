/*
 * Words of global memory that blocks look at while others may change them, which say that there
 * is nothing yet by their first 32 bits all being one (kernels/cuda/sm90/paged_share.h), judged:
 * before anybody stores there a block has stored that, once, in the same launch, and one of its
 * threads has fenced since; nobody stores there twice, or looks at others. Who looks finds now and
 * then that nothing has come although it has. Compiled as C++ by the host's compiler.
 */
#include "tests/emulator/fibre.h"

#include <unordered_map>

struct hidden {
	uint32_t block;
	bool fenced; /* the block has, since */
	bool stored; /* something else */
};

static std::unordered_map<const void *, struct hidden> words;

void share_begin(void)
{
	words.clear();
}

void fa_emulated_share_fence(void)
{
	for (auto &word : words)
		if (word.second.block == blockIdx.x)
			word.second.fenced = true;
}

void fa_emulated_share_store(void *address, const void *value, uint32_t bytes)
{
	const auto word = words.find(address);

	must_have_awaited("a share is hidden or given");
	if (*(const uint32_t *)value == UINT32_MAX && word != words.end())
		DIE("what may be a share is hidden again");
	else if (*(const uint32_t *)value == UINT32_MAX)
		words[address] = { blockIdx.x, false, false };
	else if (word == words.end())
		DIE("a share is stored where nothing was hidden");
	else if (word->second.stored)
		DIE("a share is stored where another is");
	else if (!word->second.fenced)
		DIE("a share is stored and its block has not fenced");
	else {
		word->second.stored = true;
		fa_emulated_end_give();
	}
	memcpy(address, value, bytes);
}

void fa_emulated_share_load(const void *address, void *ret_value, uint32_t bytes)
{
	must_have_awaited("somebody looks for a share");
	if (words.find(address) == words.end())
		DIE("somebody looks for a share where nothing was hidden");
	memcpy(ret_value, address, bytes);
	if (random_below(16) == 0)
		memset(ret_value, 0xff, bytes);
}
