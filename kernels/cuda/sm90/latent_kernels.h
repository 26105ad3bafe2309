/*
 * The sm_90a kernel for decode of MLA: head dims 576 and 512, V is the front of K, 64 rows at once
 * (latent_config.h). latent_*.cu instantiate it, paged-table.c has it in the host's table.
 */
#pragma once

#define FA_SM90_LATENT_DIM 576
#define FA_SM90_LATENT_DIM_V 512
#define FA_SM90_LATENT_ROWS 64

/* Two consumer warpgroups, and the producer's. */
#define FA_SM90_LATENT_THREADS 384
#define FA_SM90_LATENT_CONSUMER_REGISTERS 232
#define FA_SM90_LATENT_PRODUCER_REGISTERS 40
/* Where the producer widens codes. */
#define FA_SM90_LATENT_CODES_CONSUMER_REGISTERS 224
#define FA_SM90_LATENT_WIDENER_REGISTERS 56

/* Size of fa_sm90_latent_config::SHARED. */
#define FA_SM90_LATENT_SHARED_BYTES                                                                \
	(3 * 9 * 8192 + 64 * 32 + 2 * 64 * 4 * 2 + 2 * 2 * 4 * 8 + 16 + 128 + 4 * 304)

/* Thread blocks that compute row blocks of the same tiles of keys at the same time, at most. */
#define FA_SM90_LATENT_TEAM_MAX 4

/* Limits for fa_paged_token_of(): query heads per KV head, and rows of a sequence and KV head. */
#define FA_SM90_LATENT_HEADS_MAX 4096
#define FA_SM90_LATENT_ROWS_MAX (1 << 20)
