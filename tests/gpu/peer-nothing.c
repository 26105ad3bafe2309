/*
 * A library that is no peer, for test-peer.
 */
int peer_nothing(void);

int peer_nothing(void)
{
	return 0;
}
