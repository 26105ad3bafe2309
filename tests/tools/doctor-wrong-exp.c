/* Preloaded into factl, this makes what it compares results with wrong. */
__attribute__((visibility("default"))) double exp(double x);

double exp(double x)
{
	return 1;
}
