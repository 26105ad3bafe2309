/*
 * The input of fuzz-session: packets one after another, each with three bytes in
 * front. Bytes that do not make a whole packet at the end make a short one.
 *   byte 0   what travels with it and what happens after it, below
 *   byte 1,2 its length, least significant first
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PACKET_HEAD_BYTES 3

#define PACKET_FDS 0x0f  /* enum packet_fds; larger numbers: none */
#define PACKET_WAIT 0x10 /* wait for an answer before the next packet */
#define PACKET_TURN 0x20 /* give the daemon a turn before the next packet */
#define PACKET_READ 0x40 /* read what has come so far */

enum packet_fds {
	PACKET_NO_FD,
	PACKET_MEMFD,           /* 64 KiB, sealed as it must be */
	PACKET_MEMFD_UNSEALED,  /* may shrink */
	PACKET_MEMFD_READ_ONLY, /* sealed against writing */
	PACKET_MEMFD_SPARSE,    /* 1 TiB, without a page */
	PACKET_MEMFD_EMPTY,
	PACKET_PIPE,
	PACKET_SOCKET,
	PACKET_DIRECTORY,
	PACKET_TWO_FDS,
	PACKET_EIGHT_FDS,
	PACKET_TWENTY_FDS,
};

struct packet {
	uint8_t flags;
	const uint8_t *bytes;
	size_t length;
};

/* Takes the first packet off the input; returns 0 if there is none. */
static inline int packet_next(const uint8_t **input, size_t *left, struct packet *ret_packet)
{
	size_t length;

	if (*left < PACKET_HEAD_BYTES)
		return 0;
	length = (size_t)((*input)[1] | (*input)[2] << 8);
	if (length > *left - PACKET_HEAD_BYTES)
		length = *left - PACKET_HEAD_BYTES;
	*ret_packet = (struct packet){ (*input)[0], *input + PACKET_HEAD_BYTES, length };
	*input += PACKET_HEAD_BYTES + length;
	*left -= PACKET_HEAD_BYTES + length;
	return 1;
}

/* Appends a packet; returns what it takes, or 0 if it does not fit. */
static inline size_t packet_put(uint8_t *output, size_t room, uint8_t flags, const void *bytes,
                                size_t length)
{
	if (length > UINT16_MAX || room < PACKET_HEAD_BYTES + length)
		return 0;
	output[0] = flags;
	output[1] = (uint8_t)length;
	output[2] = (uint8_t)(length >> 8);
	for (size_t i = 0; i < length; ++i)
		output[PACKET_HEAD_BYTES + i] = ((const uint8_t *)bytes)[i];
	return PACKET_HEAD_BYTES + length;
}
