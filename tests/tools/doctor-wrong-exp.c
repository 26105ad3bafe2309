/* Preloaded into factl, this makes the reference of its comparison wrong. */
__attribute__((visibility("default"))) double exp(double x);

double exp(double x)
{
	return 1;
}
