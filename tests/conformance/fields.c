#include "tests/conformance/fields.h"

#include "tests/lib/check.h"

float field_element(uint64_t seed, uint64_t index)
{
	uint64_t z = ((seed << 32) + index + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	return ((float)(z >> 56) - 128) / 128;
}

const float *field_floats(const json_t *operation, const char *key, float *to)
{
	const json_t *array = json_object_get(operation, key);
	size_t i;
	json_t *value;

	if (!array)
		return NULL;
	fa_check(json_array_size(array) <= FIELD_FLOATS_MAX);
	json_array_foreach((json_t *)array, i, value) to[i] = (float)json_number_value(value);
	return to;
}

uint32_t field_integers(const json_t *operation, const char *key, uint32_t *to)
{
	const json_t *array = json_object_get(operation, key);
	size_t i;
	json_t *value;

	fa_check(json_array_size(array) <= FIELD_INTEGERS_MAX);
	json_array_foreach((json_t *)array, i, value) to[i] = (uint32_t)json_integer_value(value);
	return (uint32_t)json_array_size(array);
}

float field_real(const json_t *operation, const char *key)
{
	return (float)json_number_value(json_object_get(operation, key));
}

bool field_window(const json_t *operation, int64_t *ret_left, int64_t *ret_right)
{
	const json_t *sides = json_object_get(operation, "window");

	if (!sides)
		return false;
	*ret_left = json_integer_value(json_array_get(sides, 0));
	*ret_right = json_integer_value(json_array_get(sides, 1));
	return true;
}

struct fa_block_pattern field_pattern(const json_t *operation)
{
	const json_t *list = json_object_get(operation, "pattern");

	return (struct fa_block_pattern){
		.block_tokens = (uint32_t)json_integer_value(json_array_get(list, 0)),
		.local_blocks = (uint32_t)json_integer_value(json_array_get(list, 1)),
		.vert_stride = (uint32_t)json_integer_value(json_array_get(list, 2)),
		.head_step = (int32_t)json_integer_value(json_array_get(list, 3)),
		.first_head = (uint32_t)json_integer_value(json_array_get(list, 4)),
	};
}
