package faclient

// #include "shim.h"
import "C"

import "math"

// Dtype is the type of a tensor's elements at run time.
type Dtype uint32

// The types of elements.
const (
	DtypeF32  Dtype = C.FA_F32
	DtypeF16  Dtype = C.FA_F16
	DtypeBF16 Dtype = C.FA_BF16
	// Only of what lies in pages that the program manages, of their tables, and of masks.
	DtypeE4M3 Dtype = C.FA_E4M3
	DtypeI32  Dtype = C.FA_I32
	DtypeI64  Dtype = C.FA_I64
)

// F16 is an IEEE half, by its bits.
type F16 uint16

// BF16 is the upper 16 bits of a float32, by its bits.
type BF16 uint16

// E4M3 is an 8-bit float with 4 bits of exponent, by its bits.
type E4M3 uint8

// Element is a number to compute with.
type Element interface{ float32 | F16 | BF16 }

// Stored is what tensors hold: elements, E4M3, and the integers of tables of pages and of masks.
type Stored interface {
	Element | E4M3 | int32 | int64
}

func dtypeOf[T Stored]() Dtype {
	var element T
	switch any(element).(type) {
	case E4M3:
		return DtypeE4M3
	case int32:
		return DtypeI32
	case int64:
		return DtypeI64
	case F16:
		return DtypeF16
	case BF16:
		return DtypeBF16
	}
	return DtypeF32
}

// FromFloat32 returns the nearest value, ties to even.
func FromFloat32[T Element](value float32) T {
	var element T
	switch to := any(&element).(type) {
	case *float32:
		*to = value
	case *F16:
		*to = halfOf(value)
	case *BF16:
		*to = upperHalfOf(value)
	}
	return element
}

// ToFloat32 returns the same value.
func ToFloat32[T Element](element T) float32 {
	switch from := any(element).(type) {
	case F16:
		return from.float32()
	case BF16:
		return math.Float32frombits(uint32(from) << 16)
	case float32:
		return from
	}
	return 0
}

func upperHalfOf(value float32) BF16 {
	bits := math.Float32bits(value)
	if value != value {
		return BF16(bits>>16) | 0x40
	}
	return BF16((bits + 0x7fff + bits>>16&1) >> 16)
}

func halfOf(value float32) F16 {
	bits := math.Float32bits(value)
	sign := F16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7fffffff
	switch {
	case magnitude > 0x7f800000:
		return sign | 0x7e00
	case magnitude < 0x38800000:
		// Below 2^-14. The sum's last bit is worth 2^-24, the smallest half.
		sum := math.Float32frombits(magnitude) + 0.5
		return sign | F16(math.Float32bits(sum)-math.Float32bits(0.5))
	}
	// The exponent's bias falls from 127 to 15, and 13 bits of the fraction are rounded away.
	rounded := (magnitude - 112<<23 + 0xfff + magnitude>>13&1) >> 13
	if rounded > 0x7c00 {
		rounded = 0x7c00
	}
	return sign | F16(rounded)
}

func (h F16) float32() float32 {
	sign, magnitude := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	var value float32
	switch magnitude >> 10 {
	case 0:
		value = float32(magnitude) / (1 << 24)
	case 31:
		value = math.Float32frombits(0x7f800000 | magnitude<<13)
	default:
		value = math.Float32frombits(magnitude<<13 + 112<<23)
	}
	return math.Float32frombits(math.Float32bits(value) | sign)
}
