/* Listening sockets of the exporter: loopback addresses and paths. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * At "PORT", "HOST:PORT" or an absolute path. @ret_url, of @url_bytes: for people. Returns the
 * socket, or a negative errno after a message on stderr; -EINVAL: no such address.
 */
int fa_address_listen(const char *address, bool *ret_is_unix, char *ret_url, size_t url_bytes);
