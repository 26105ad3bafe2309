/*
 * Numbers. Vulkan promises little about exp, log, tanh, sin and cos, about the rounding of halves,
 * and nothing about NaN, so these are computed here, with a few units in the last place of fp32.
 * Numbers below 2^-126 may count as zero: a device need not have them.
 */
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#define NAN uintBitsToFloat(0x7fc00000u)
#define INF uintBitsToFloat(0x7f800000u)
#define FLT_LARGEST uintBitsToFloat(0x7f7fffffu)

bool is_nan(float x)
{
	return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool is_finite(float x)
{
	return (floatBitsToUint(x) & 0x7fffffffu) < 0x7f800000u;
}

/* ---- types */

float f16_decode(uint bits)
{
	uint magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;

	if (magnitude < 0x400u)
		return uintBitsToFloat(floatBitsToUint(float(magnitude) * 5.9604644775390625e-8) |
		                       sign);
	if (magnitude >= 0x7c00u)
		return uintBitsToFloat(magnitude << 13 | 0x7f800000u | sign);
	return uintBitsToFloat((magnitude << 13) + (112u << 23) | sign);
}

float bf16_decode(uint bits)
{
	return uintBitsToFloat(bits << 16);
}

uint f16_encode(float x)
{
	uint bits = floatBitsToUint(x), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
	uint code;

	if (magnitude > 0x7f800000u)
		code = 0x7e00u;
	else if (magnitude >= 0x477ff000u) /* 65520 */
		code = 0x7c00u;
	else if (magnitude < 0x33000000u) /* 2^-25: half of the least number */
		code = 0;
	else if (magnitude < 0x38800000u) { /* 2^-14: rounds to a multiple of 2^-24 */
		uint digits = magnitude & 0x7fffffu | 0x800000u, drop = 126u - (magnitude >> 23);

		code = digits + (1u << drop - 1) - 1 + (digits >> drop & 1u) >> drop;
	} else
		code = magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23) >> 13;
	return code | sign;
}

uint bf16_encode(float x)
{
	uint bits = floatBitsToUint(x);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return 0x7fc0u;
	return bits + 0x7fffu + (bits >> 16 & 1u) >> 16;
}

float e4m3_decode(uint code)
{
	uint magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;

	if (magnitude == 0x7fu)
		return NAN;
	if (magnitude < 8u)
		return uintBitsToFloat(floatBitsToUint(float(magnitude) * 0.001953125) | sign);
	return uintBitsToFloat((magnitude << 20) + (120u << 23) | sign);
}

float int8_decode(uint code)
{
	return float(int(code << 24) >> 24);
}

/* ---- functions */

/* Returns exp(x) * 2^-shift; 0 below 2^-126. */
float exp_shifted(float x, int shift)
{
	if (is_nan(x))
		return x;
	if (x < -200.0)
		return 0;
	if (x > 88.0)
		return INF;

	float n = floor(x * 1.44269504 + 0.5);
	int exponent = int(n) - shift + 127;
	/* n * 0.693359375 is exact. */
	precise float r = x - n * 0.693359375;
	r = r - n * -2.12194440e-4;
	float p = 1.0 / 5040;

	p = p * r + 1.0 / 720;
	p = p * r + 1.0 / 120;
	p = p * r + 1.0 / 24;
	p = p * r + 1.0 / 6;
	p = p * r + 0.5;
	p = p * (r * r) + r;
	if (exponent <= 0)
		return 0;
	if (exponent > 254)
		return (1 + p) * uintBitsToFloat(254u << 23) * 2;
	return (1 + p) * uintBitsToFloat(uint(exponent) << 23);
}

/* Of a number from 2^-126 on, or NaN. */
float log_of(float x)
{
	uint bits = floatBitsToUint(x);

	if (is_nan(x) || bits == 0x7f800000u)
		return x;

	float e = float(int(bits >> 23) - 127), m = uintBitsToFloat(bits & 0x7fffffu | 0x3f800000u);

	if (m > 1.41421356) {
		m *= 0.5;
		e += 1;
	}

	float f = m - 1, s = f / (2 + f), z = s * s;
	float p = 2.0 / 9;

	p = p * z + 2.0 / 7;
	p = p * z + 2.0 / 5;
	p = p * z + 2.0 / 3;
	p = p * z * s + 2 * s;
	return e * 0.693359375 + (p + e * -2.12194440e-4);
}

float tanh_of(float x)
{
	float size = uintBitsToFloat(floatBitsToUint(x) & 0x7fffffffu), y;

	if (is_nan(x))
		return x;
	if (size < 0.25) {
		float z = x * x, p = 62.0 / 2835;

		p = p * z - 17.0 / 315;
		p = p * z + 2.0 / 15;
		p = p * z - 1.0 / 3;
		return x + x * (p * z);
	}
	y = size > 10 ? 1 : 1 - 2 / (exp_shifted(2 * size, 0) + 1);
	return uintBitsToFloat(floatBitsToUint(y) | floatBitsToUint(x) & 0x80000000u);
}

/* Returns the cosine and sine of an angle in turns of 2^-64. */
vec2 cos_sin_of(uint64_t turns)
{
	uint64_t quarter = turns + (uint64_t(1) << 61) >> 62;
	int rest = int(int64_t(turns - (quarter << 62)) >> 32); /* of 2^-32 turns, at most an eighth */
	float a = float(rest) * 1.4629180792671596e-9, z = a * a;
	float s = 1.0 / 362880, c = -1.0 / 3628800;

	s = s * z - 1.0 / 5040;
	s = s * z + 1.0 / 120;
	s = s * z - 1.0 / 6;
	s = a + a * (s * z);
	c = c * z + 1.0 / 40320;
	c = c * z - 1.0 / 720;
	c = c * z + 1.0 / 24;
	c = c * z - 0.5;
	c = 1 + c * z;
	switch (uint(quarter) & 3u) {
	case 0:
		return vec2(c, s);
	case 1:
		return vec2(-s, c);
	case 2:
		return vec2(-c, -s);
	default:
		return vec2(s, -c);
	}
}

/* ---- division, of positive finite numbers: a device's own may be wrong by some units in the last place, and
 * codes would differ from those of other backends */

uint digits_of(uint bits, out int exponent)
{
	uint digits = bits & 0x7fffffu;

	exponent = int(bits >> 23);
	if (exponent > 0)
		return digits | 0x800000u;
	exponent = findMSB(digits) - 22;
	return digits << 1 - exponent;
}

float divide(float x, float y)
{
	int x_exponent, y_exponent;
	uint x_digits = digits_of(floatBitsToUint(x), x_exponent);
	uint y_digits = digits_of(floatBitsToUint(y), y_exponent);
	int exponent = x_exponent - y_exponent + 127;

	if (x_digits == 0)
		return 0;
	if (x_digits < y_digits) {
		x_digits <<= 1;
		exponent--;
	}

	/* 24 digits, one for rounding, and one that says whether there is more. */
	uint64_t quotient = (uint64_t(x_digits) << 25) / y_digits;
	uint code = uint(quotient) | (quotient * y_digits == uint64_t(x_digits) << 25 ? 0u : 1u);
	uint drop = exponent > 0 ? 2u : min(uint(3 - exponent), 31u);

	if (exponent > 254)
		return INF;
	code = code + (1u << drop - 1) - 1 + (code >> drop & 1u) >> drop;
	return uintBitsToFloat(code + (exponent > 0 ? uint(exponent - 1) << 23 : 0u));
}

/* ---- codes, as kernels/quantise.h defines them */

float clamp_finite(float x)
{
	x = x > FLT_LARGEST ? FLT_LARGEST : x;
	return x < -FLT_LARGEST ? -FLT_LARGEST : x;
}

uint e4m3_encode(float x)
{
	uint bits = floatBitsToUint(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
	uint code;

	if (magnitude > 0x7f800000u)
		return 0x7fu;
	if (magnitude < 0x3a800000u) /* 2^-10: half of the least code */
		code = 0;
	else if (magnitude < 0x3c800000u) { /* 2^-6: rounds to a multiple of 2^-9 */
		uint digits = magnitude & 0x7fffffu | 0x800000u, drop = 141u - (magnitude >> 23);

		code = digits + (1u << drop - 1) - 1 + (digits >> drop & 1u) >> drop;
	} else if (magnitude > 0x43e00000u) /* 448 */
		code = 0x7eu;
	else
		code = magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23) >> 20;
	return code | sign;
}

uint int8_encode(float x)
{
	if (is_nan(x))
		return 0;
	return uint(int(roundEven(clamp(x, -127.0, 127.0)))) & 0xffu;
}
