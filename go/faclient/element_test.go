package faclient

import (
	"math"
	"testing"
)

// checkAll checks that every number comes back, and that what lies between two goes to the nearer one.
func checkAll[T interface {
	Element
	~uint16
}](t *testing.T, infinity int) {
	value := func(bits int) float32 { return ToFloat32(T(bits)) }
	bits := func(value float32) int { return int(FromFloat32[T](value)) }
	for n := 0; n < infinity; n++ {
		low, high := value(n), value(n+1)
		equal(t, bits(low), n)
		equal(t, bits(-low), n|0x8000)
		if n+1 == infinity {
			continue
		}
		middle := low/2 + high/2
		equal(t, bits(middle), n+n%2)
		below := math.Float32frombits(math.Float32bits(middle) - 1)
		above := math.Float32frombits(math.Float32bits(middle) + 1)
		if low < below && above < high {
			equal(t, bits(below), n)
			equal(t, bits(above), n+1)
		}
	}
	inf := float32(math.Inf(1))
	equal(t, bits(inf), infinity)
	equal(t, bits(math.MaxFloat32), infinity)
	equal(t, value(infinity), inf)
	if nan := value(bits(float32(math.NaN()))); nan == nan {
		t.Fatal("NaN is lost")
	}
}

func TestHalves(t *testing.T) {
	checkAll[F16](t, 0x7c00)
	equal(t, FromFloat32[F16](1), 0x3c00)
	equal(t, FromFloat32[F16](65519), 0x7bff)
	equal(t, FromFloat32[F16](65520), 0x7c00)
	checkAll[BF16](t, 0x7f80)
	equal(t, FromFloat32[BF16](1), 0x3f80)
	equal(t, ToFloat32[float32](1.25), 1.25)
}
