/*
 * Input of fuzz-session: packets, each behind a header of three bytes. Leftover bytes at the end
 * make a short packet.
 *   byte 0   descriptors and flags, below
 *   byte 1,2 length, little endian
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PACKET_HEAD_BYTES 3

#define PACKET_FDS 0x0f  /* descriptors: enum packet_fds; larger numbers: none */
#define PACKET_WAIT 0x10 /* wait for a reply before the next packet */
#define PACKET_TURN 0x20 /* run the daemon before the next packet */
#define PACKET_READ 0x40 /* read what has arrived */

enum packet_fds {
	PACKET_NO_FD,
	PACKET_MEMFD,           /* 64 KiB, sealed as required */
	PACKET_MEMFD_UNSEALED,  /* not sealed against shrinking */
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

/* Takes the first packet off the input; returns 0 if none is left. */
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

/* Appends a packet; returns its size, or 0 if it does not fit. */
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
