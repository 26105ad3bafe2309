/* Compiled by a glslang that knows what matrix.comp needs. */
#version 460
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_bfloat16 : require

void main()
{
}
