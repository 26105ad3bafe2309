/*
 * A libcuda.so.1 that predates cuGetProcAddress_v2.
 */
int cuInit(unsigned int flags);

__attribute__((visibility("default"))) int cuInit(unsigned int flags)
{
	return 0;
}
