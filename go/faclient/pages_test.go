package faclient

import (
	"context"
	"math"
	"sync"
	"syscall"
	"testing"
)

// pagesOf returns pages of 4 tokens of one KV head of 16. All numbers of a page are the same.
func pagesOf(t *testing.T, memory *Buffer, values ...float32) *Tensor[float32] {
	tensor := must(NewTensor[float32](memory, len(values), 4, 1, 16))(t)
	for i := range tensor.Data() {
		tensor.Data()[i] = values[i/64]
	}
	return tensor
}

func allAre(t *testing.T, out *Tensor[float32], expected float32) {
	t.Helper()
	for _, x := range out.Data() {
		near(t, x, expected)
	}
}

// attendOf is a row of two heads for each sequence, whose keys all have the same score.
func attendOf[S Stored](t *testing.T, memory *Buffer, k, v *Tensor[S], table []int32,
	lengths ...int32) *PagesAttend[float32, S] {
	batch := len(lengths)
	return &PagesAttend[float32, S]{K: k, V: v, Q: must(NewTensor[float32](memory, batch, 2, 16))(t),
		Out:     must(NewTensor[float32](memory, batch, 2, 16))(t),
		Table:   numbers(t, memory, table, batch, len(table)/batch),
		Lengths: numbers(t, memory, lengths, batch)}
}

func TestPagesShared(t *testing.T) {
	c := private(t)
	memory := must(c.Buffer(1 << 16))(t)
	k := pagesOf(t, memory, 0, 0, 0)
	v := pagesOf(t, memory, 1, 2, float32(math.NaN()))
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		a := attendOf(t, memory, k, v, []int32{0, 1}, 8)
		if i%2 == 1 {
			a = attendOf(t, memory, k, v, []int32{1, 0}, 4)
		}
		group.Add(1)
		go func(i int) {
			defer group.Done()
			if err := c.PagesAttend(context.Background(), a); err != nil {
				t.Error(err)
				return
			}
			if x := a.Out.Data()[0]; x != []float32{1.5, 2}[i%2] {
				t.Errorf("request %d has %v", i, x)
			}
		}(i)
	}
	group.Wait()
}

func TestPagesAppend(t *testing.T) {
	c, nan := private(t), float32(math.NaN())
	memory := must(c.Buffer(1 << 16))(t)
	a := attendOf(t, memory, pagesOf(t, memory, 0, 0, 0), pagesOf(t, memory, nan, 1, nan), []int32{1, 2}, 5)
	a.KNew = must(NewTensor[float32](memory, 2, 1, 16))(t)
	a.VNew = must(NewTensor[float32](memory, 2, 1, 16))(t)
	for i := range a.VNew.Data() {
		a.VNew.Data()[i] = 6
	}
	a.Slots = numbers(t, memory, []int64{8, -1}, 2)
	r := must(c.SubmitPages(a))(t)
	func() {
		defer func() {
			if recover() == nil && !r.Ended() {
				t.Error("pages that a request writes can be read")
			}
		}()
		a.V.Data()
	}()
	check(t, r.Wait(context.Background()))
	allAre(t, a.Out, 2) // the mean of four ones and a six
	equal(t, a.V.Data()[8*16], 6)
	equal(t, a.V.Data()[9*16] != a.V.Data()[9*16], true)
}

func TestPagesCodes(t *testing.T) {
	c := private(t)
	memory := must(c.Buffer(1 << 16))(t)
	k, v := must(NewTensor[E4M3](memory, 1, 4, 1, 16))(t), must(NewTensor[E4M3](memory, 1, 4, 1, 16))(t)
	for i := range v.Data() {
		v.Data()[i] = 0x38 // 1
	}
	a := attendOf(t, memory, k, v, []int32{0}, 4)
	a.KScales = must(NewTensor[float32](memory, 1))(t)
	a.KScales.Data()[0] = 0.5
	a.VScales = a.KScales
	check(t, c.PagesAttend(context.Background(), a))
	allAre(t, a.Out, 0.5)
}

func TestPagesGarbage(t *testing.T) {
	c := private(t)
	memory := must(c.Buffer(1 << 16))(t)
	pagesOf(t, memory, float32(math.NaN()))
	k, v := pagesOf(t, memory, 0, 0), pagesOf(t, memory, 1, 1)
	pagesOf(t, memory, float32(math.NaN()))
	a := attendOf(t, memory, k, v, make([]int32, 6), 0, 0, 0)
	seed := uint32(1)
	for i := 0; i < 100; i++ {
		for _, tensor := range []*Tensor[int32]{a.Table, a.Lengths} {
			for j := range tensor.Data() {
				seed = seed*1664525 + 1013904223
				tensor.Data()[j] = int32(seed)
			}
		}
		check(t, c.PagesAttend(context.Background(), a))
		for _, x := range a.Out.Data() {
			if x != 0 && !(math.Abs(float64(x)-1) < 1e-6) {
				t.Fatalf("found %v", x)
			}
		}
	}
}

func TestPagesWrongUse(t *testing.T) {
	c, other, ctx := private(t), private(t), context.Background()
	memory, strange := must(c.Buffer(1<<16))(t), must(other.Buffer(1<<16))(t)
	k, v := pagesOf(t, memory, 0), pagesOf(t, memory, 1)
	a := attendOf(t, memory, k, v, []int32{0}, 4)
	a.Table = numbers(t, memory, []int32{0}, 1)
	says(t, c.PagesAttend(ctx, a), syscall.EINVAL, "table.rank is 1; expected 2")
	a = attendOf(t, memory, k, pagesOf(t, strange, 1), []int32{0}, 4)
	says(t, c.PagesAttend(ctx, a), syscall.EINVAL, "another client")
	a = attendOf(t, memory, k, v, []int32{0}, 4)
	a.Sinks = make([]float32, 3)
	says(t, c.PagesAttend(ctx, a), syscall.EINVAL, "Sinks has 3 numbers; expected 2")
	a.Sinks, a.K = nil, nil
	says(t, c.PagesAttend(ctx, a), syscall.EINVAL, " ")
	a.K, a.MaxQ = k, -1
	says(t, c.PagesAttend(ctx, a), syscall.EINVAL, "max_q")
	a.MaxQ = 0
	check(t, c.PagesAttend(ctx, a))
	check(t, memory.Free())
	says(t, c.PagesAttend(ctx, a), syscall.EINVAL, "freed")
}

func TestPagesCopies(t *testing.T) {
	c, other, ctx := private(t), private(t), context.Background()
	cache := must(c.CreateCache(CacheOptions{Dtype: DtypeBF16, Layers: 3, KVHeads: 2, HeadDim: 64}))(t)
	sequence := must(cache.Sequence())(t)
	memory := must(c.Buffer(1 << 20))(t)
	layers := func(memory *Buffer, n, first int, shape ...int) (list []*Tensor[BF16]) {
		for layer := 0; layer < n; layer++ {
			tensor := must(NewTensor[BF16](memory, shape...))(t)
			for i := range tensor.Data() {
				tensor.Data()[i] = FromFloat32[BF16](float32((first + layer + i) % 200))
			}
			list = append(list, tensor)
		}
		return list
	}
	// 40 tokens in three pages of 16, from the third place on.
	from := Layers[BF16]{layers(memory, 3, 0, 4, 16, 2, 64), layers(memory, 3, 50, 4, 16, 2, 64)}
	pages := PagesRange{Tokens: 40, Pages: []uint32{3, 0, 2}, PageOffset: 2}
	step := must(c.Step(Item{Sequence: sequence, New: 40}))(t)
	check(t, step.WritePages(ctx, sequence, pages, from))
	check(t, step.Commit(ctx))
	says(t, step.WritePages(ctx, sequence, pages, from), syscall.EINVAL, "the step has ended")
	// Two layers of 10 of them, heads first, in pages of 8.
	back := Layers[BF16]{V: layers(memory, 2, 0, 2, 2, 8, 64)}
	check(t, sequence.ReadPages(ctx, PagesRange{Layer: 1, First: 20, Tokens: 10, Pages: []uint32{1, 0},
		PageOffset: 3, HeadsFirst: true}, back))
	for layer, found := range back.V {
		for i := 0; i < 10; i++ {
			at, of := 3+i, 2+20+i
			for head := 0; head < 2; head++ {
				to := (([]int{1, 0}[at/8]*2+head)*8 + at%8) * 64
				source := (([]int{3, 0, 2}[of/16]*16+of%16)*2 + head) * 64
				for d := 0; d < 64; d++ {
					equal(t, found.Data()[to+d], from.V[layer+1].Data()[source+d])
				}
			}
		}
	}

	twice := pages
	twice.Pages = []uint32{0, 0, 1}
	says(t, sequence.ReadPages(ctx, twice, from), syscall.EINVAL, "each page once")
	says(t, sequence.ReadPages(ctx, pages, Layers[BF16]{from.K, from.V[:1]}), syscall.EINVAL,
		"V has 1 layers, and K 3")
	says(t, sequence.ReadPages(ctx, pages, Layers[BF16]{}), syscall.EINVAL, " ")
	strange := Layers[BF16]{K: layers(must(other.Buffer(1<<20))(t), 3, 0, 4, 16, 2, 64)}
	says(t, sequence.ReadPages(ctx, pages, strange), syscall.EINVAL, "another client")
	missing := Layers[BF16]{K: []*Tensor[BF16]{from.K[0], nil, from.K[2]}}
	says(t, sequence.ReadPages(ctx, pages, missing), syscall.EINVAL, " ")
}
