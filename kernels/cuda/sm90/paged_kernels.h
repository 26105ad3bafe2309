/*
 * The table of built sm_90a kernels over pages, as sm80/paged_kernels.h: read by the device
 * code, which instantiates a kernel from every row, and by paged-table.c.
 *
 * Decode: X(dim, atoms, groups, stages, blocks); paged_config.h says what the numbers mean. K's and
 * V's rows have exactly dim elements.
 *
 * On an H200, bf16, 8 KV heads of 32, before FA_SM90_PAGED_EARLY (us: this against the portable
 * kernel against a bare read of K and V):
 *   d128  11.8 / 16.3 / 5.1 for 1 x 1k, 17.4 / 20.1 / 11.8 for 8 x 1k, 128 / 134 / 121 for
 *         32 x 4k, 481 / 486 / 466 for 128 x 4k; 4 stages instead of 3 are no faster, 5 and 6
 *         slower by 0 to 5 us: some SMs get ahead of others
 *   d256  17.9 / 25.6 / 5.9, 29.3 / 37.2 / 19.1, 251 / 263 / 235, 938 / 965 / 924
 *   d64   10.3 / 12.8 / 4.5, 13.5 / 15.8 / 8.0, 72.6 / 73.8 / 63.5, 251 / 253 / 237
 * At d64 one group of four warps did not keep up: 82 / 74 / 63 for 32 x 4k, where a tile's bytes
 * come to an SM in about 900 cycles and the group was through with it in 1,200. Three groups have
 * 2,700; two, which is what registers allow beside O of two fragments (three spill), have 1,800.
 * Their rings have 144 and 128 KiB, of which 96 are for what arrives while all groups are at a
 * tile.
 */
#pragma once

#define FA_SM90_PAGED_DECODE(X)                                                                    \
	X(64, 1, 3, 9, 1)                                                                          \
	X(64, 2, 2, 8, 1)                                                                          \
	X(128, 1, 1, 3, 1)                                                                         \
	X(128, 2, 1, 5, 1)                                                                         \
	X(256, 1, 1, 3, 1)

/* Shares that a thread adds up at a time. Where parts have many more, a kernel of its own adds up
 * groups of that many, and then what came of them (paged_share.h); in one kernel launches would
 * have to walk past the other's code. On an H200 (bench/results/RESULTS.md, us) a sequence of one KV
 * head of 8, which was divided among 64 blocks at most before, takes 13.7 after 16.2 for 1 x 16k
 * and 28.7 after 34.9 for 1 x 128k; in races with other head dims, four new tokens, or codes,
 * 1 x 128k took 0.72 to 0.90 of what it had. Four warps more, which would do nothing but add up,
 * leave too few registers to the others. */
#define FA_SM90_PAGED_AT_ONCE 16

/* Decode in pieces (sm80/paged_pieces.h): with one fragment of rows what must not depend on the
 * step, as a row block of two computes 28 rows of 32 for nothing if 4 heads share a key. With two
 * it is not the memory that tiles wait for, as prefixes come from L2: one group of four warps took
 * about 1.1 us for a tile, 157 us for 64 sequences that share 8k of 9k tokens on an H200. */
#define FA_SM90_PAGED_PIECES(X)                                                                    \
	X(128, 1, 1, 4, 1)                                                                         \
	X(128, 2, 2, 4, 1)                                                                         \
	X(256, 1, 1, 3, 1)

/* Those that compute, and a warp that loads; where these are two groups of two fragments at d128,
 * they have registers of others: three warps that do nothing, as registers are given and taken by
 * fours. */
#define FA_SM90_PAGED_GIVES(dim, atoms, groups) ((dim) * (atoms) * (groups) > 256)

/* Of those: whether parts of up to 16 rows are computed as with one fragment. Parts with as many
 * rows for each group, which then all take all tiles, read a prefix half as often and were slower:
 * 195 us against 151 for 64 sequences that share 8k of 9k tokens on an H200, as a tile takes twice
 * as long where SMs have as many tiles as the others. */
#define FA_SM90_PAGED_FEW 1
#define FA_SM90_PAGED_LOADER_REGISTERS 56
#define FA_SM90_PAGED_GROUP_REGISTERS 224
#define FA_SM90_PAGED_THREADS(dim, atoms, groups)                                                  \
	((groups)*128 + (FA_SM90_PAGED_GIVES(dim, atoms, groups) ? 128 : 32))

/* Whether new tokens may come with a launch (paged_append.h): at d64 two fragments of O leave no
 * registers for it. */
#define FA_SM90_PAGED_APPENDS(dim, atoms) ((dim) != 64 || (atoms) == 1)

/* Tried and slower: going through the end of a segment once, with nothing, while the first tile is
 * on its way, so that its code is there when it is needed: 1 x 1k 11.4 us against 10.9, 8 x 1k 17.6
 * against 16.4 (d128); 9.8 against 8.5 (d64, 1 x 1k). */

/* Rows that an item of decode has of a KV head, at most: fa_paged_token_of(). */
#define FA_SM90_PAGED_ROWS_MAX (1 << 20)

/*
 * Whether the first tiles of a block are asked for before all else, and how many. A launch whose
 * code is not there (that is what a step's kernel finds, behind others) had its first copy under
 * way 3.5 us after its blocks began. Code that is straight comes as fast as it is run, but behind
 * a jump it has to be waited for: 0.1 us behind one over some dozen instructions, a microsecond
 * behind one to the other end of the kernel, where the loading warp's loop is. What the launch is
 * given is waited for, too (args.h). So all warps begin with the same code, the loading one goes on
 * with nothing but these tiles, and rows of Q that are not aligned, and divisions, have little: it
 * is 1.5 us. On an H200 (bench/results/RESULTS.md, bf16, us)
 * 1 x 1k, 8 x 1k, 8 x 4k and 32 x 1k take 9.1, 16.5, 38.0 and 37.9 after 10.4, 17.3, 39.0 and 39.6
 * at d128, 1 x 1k 14.4 after 16.2 at d256.
 *
 * Three tiles at d256, a ring: in turns with one on an H100 (a race, no rows) 8 x 1k took 32.4 us
 * after 33.1, 8 x 4k 97.4 after 99.3. At d128 8 x 1k took 19.1 after 18.6, 1 x 16k 30.1 after 29.6.
 * Tried in races like that, and no faster, or slower: three tiles by the first
 * warp; the mbarriers by the loading warp, 8 x 1k 17.2 for 16.7; the fence of those that compute
 * where they count, 1 x 1k 9.5 for 9.3; this only where blocks have less than eight tiles; this at
 * d64; the loading warp's loop right behind its first tile, and those that compute jump over it, 0
 * to 1.1 us slower; another warp that looks at that loop's code, so that it is there, 1.5 slower
 * for 1 x 1k at d256; warps that look at what the launch is given before it is needed, 0.2 to 0.8
 * slower. Pieces have no registers for it.
 *
 * Where 1 x 1k is then, by %globaltimer in a build that had it read: 0.8 us to where walks start,
 * 1.5 the copies, 3.0 the first tile's dots (Q's rows, facts, and the fence, 0.35 of it), 3.9 its
 * end, 4.6 shares given, 5.8 added up, 6.2 the blocks' end; 3.5 are the launch's and the events'.
 */
#define FA_SM90_PAGED_EARLY(dim) ((dim) >= 128)
#define FA_SM90_PAGED_EARLY_TILES(dim) ((dim) == 256 ? 3 : 1)

/* A tile's quarter of K or of V. */
#define FA_SM90_PAGED_QUARTER(dim) (16 * (dim)*2)

/* Whether Q stays in registers, and else bytes from row to row in shared memory. Threads of three
 * groups have 128 registers, and at d64 Q would take the last of them. */
#define FA_SM90_PAGED_Q_HELD(dim, atoms) ((dim) != 64 && (dim) * (atoms) <= 128)
#define FA_SM90_PAGED_Q_PITCH(dim) ((dim)*2 + 64)

/* Columns of O that the warps bring together at a time, and floats from row to row. */
#define FA_SM90_PAGED_MERGE_COLUMNS(dim, atoms) ((dim) * (atoms) <= 128 ? (dim) : 64)
#define FA_SM90_PAGED_MERGE_PITCH(dim, atoms) (FA_SM90_PAGED_MERGE_COLUMNS(dim, atoms) + 8)

/* Of rows of many columns, how many at a time, of all columns; 0: as above. Mostly there are no
 * more, and they are brought together at once. */
#define FA_SM90_PAGED_MERGE_ROWS(dim) ((dim) == 256 ? 4 : 0)

/* The ring of tiles, Q, what the warps bring together, each warp's facts, walks that
 * are parked, and barriers. */
#define FA_SM90_PAGED_SHARED_BYTES(dim, atoms, groups, stages)                                     \
	((stages)*8 * FA_SM90_PAGED_QUARTER(dim) +                                                 \
	 (FA_SM90_PAGED_Q_HELD(dim, atoms) ? 0 : (atoms)*16 * FA_SM90_PAGED_Q_PITCH(dim)) +        \
	 (groups)*4 * (atoms)*16 * (FA_SM90_PAGED_MERGE_PITCH(dim, atoms) * 4 + 8) +               \
	 (groups)*4 * (atoms)*16 * 32 +                                                            \
	 (FA_SM90_PAGED_GIVES(dim, atoms, groups) ? (groups)*4 * 128 : 0) + 32 + (stages)*16)

/*
 * Decode of codes: X(dim, atoms, groups, stages) for each kind of them; paged_codes.h. One block
 * to an SM, with 152 registers for each thread of three groups, 224 of two, and 56 of the others;
 * nothing spills (CUDA 13.0). Shared memory, in this order: 169, 162, 219, 200 and 188 KiB, of
 * which the ring has 102, 102, 148, 132 and 130.
 *
 * What is behind the choice: an H200's memory brings an SM 16 tokens of K and V of a KV head in 209
 * cycles at d128, and each of its four schedulers has four times that for a warp's 16 tokens. By
 * ptxas's stalls those are 1070 cycles to a warp alone (d128, e4m3, one fragment of rows), and
 * three at a scheduler have one through every 520, 580 with tokens' scales. At d64 they have half
 * of that. Where O has two fragments of rows, or 256 columns, two is what registers allow. With one
 * warp that loaded, for all groups, an H200 took 970 cycles a tile, 1120 with tokens' scales: 0.77
 * of a bare read for 32 x 4k with heads', and 0.72 for mixed lengths.
 */
#define FA_SM90_CODES_DECODE(X)                                                                    \
	X(64, 1, 3, 12)                                                                            \
	X(64, 2, 2, 12)                                                                            \
	X(128, 1, 3, 9)                                                                            \
	X(128, 2, 2, 8)                                                                            \
	X(256, 1, 2, 4)

/* Groups of four warps that compute, and one that loads; registers of each, which together are
 * what the block has. */
#define FA_SM90_CODES_THREADS(groups) ((groups)*128 + 128)
#define FA_SM90_CODES_LOADER_REGISTERS(groups) 56
#define FA_SM90_CODES_GROUP_REGISTERS(groups) ((groups) == 3 ? 152 : 224)

#define FA_SM90_CODES_Q_HELD(dim, atoms) ((dim) * (atoms) <= 128)

/* Columns of O that the warps bring together at a time, and floats from row to row. */
#define FA_SM90_CODES_MERGE_COLUMNS(atoms) (64 / (atoms))
#define FA_SM90_CODES_MERGE_PITCH(atoms) (64 / (atoms) + 16)

/* The ring of tiles and their tokens' scales, Q of two segments with facts and a factor of each
 * row, what the warps bring together, barriers, and where walks start. */
#define FA_SM90_CODES_SHARED_BYTES(dim, atoms, groups, stages)                                     \
	((stages) * (128 * (dim) + 512) + 2 * (atoms)*16 * ((dim)*2 + 32 + 4) +                    \
	 (groups)*4 * (atoms)*16 * (FA_SM90_CODES_MERGE_PITCH(atoms) * 4 + 8) + 32 + (stages)*16 + \
	 32 + 128)
