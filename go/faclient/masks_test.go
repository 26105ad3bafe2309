package faclient

import (
	"context"
	"math"
	"syscall"
	"testing"
)

const (
	maskBatch, maskQ, maskK    = 2, 150, 200
	maskHeads, maskKV, maskDim = 4, 2, 16
)

// random fills tensors with numbers from -1 to 1.
func random(seed *uint32, tensors ...*Tensor[float32]) {
	for _, tensor := range tensors {
		for i := range tensor.Data() {
			*seed = *seed*1664525 + 1013904223
			tensor.Data()[i] = float32(int32(*seed)) / (1 << 31)
		}
	}
}

// masked returns attention over random numbers, to which a test adds its mask.
func masked(t *testing.T, memory *Buffer) *Attention[float32] {
	t.Helper()
	tensor := func(tokens, heads int) *Tensor[float32] {
		return must(NewTensor[float32](memory, maskBatch, tokens, heads, maskDim))(t)
	}
	a := &Attention[float32]{Q: tensor(maskQ, maskHeads), K: tensor(maskK, maskKV), V: tensor(maskK, maskKV),
		Out: tensor(maskQ, maskHeads), LSE: must(NewTensor[float32](memory, maskBatch, maskHeads, maskQ))(t)}
	seed := uint32(7)
	random(&seed, a.Q, a.K, a.V)
	return a
}

// isNaive compares results with attention in float64 where row i of a head sees the keys that sees tells.
func isNaive(t *testing.T, q, k, v, out, lse []float32, n int, sees func(b, h, i, j int) bool) {
	t.Helper()
	hidden := 0
	for row := 0; row < n*maskHeads; row++ {
		b, i, h := row/maskHeads/maskQ, row/maskHeads%maskQ, row%maskHeads
		sum, expected := 0.0, [maskDim]float64{}
		for j := 0; j < maskK; j++ {
			if !sees(b, h, i, j) {
				hidden++
				continue
			}
			at, score := ((b*maskK+j)*maskKV+h*maskKV/maskHeads)*maskDim, 0.0
			for d := 0; d < maskDim; d++ {
				score += float64(q[row*maskDim+d]) * float64(k[at+d])
			}
			p := math.Exp(score / 4) // 1/sqrt(maskDim)
			sum += p
			for d := range expected {
				expected[d] += p * float64(v[at+d])
			}
		}
		for d, x := range expected {
			if sum > 0 {
				x /= sum
			}
			near(t, out[row*maskDim+d], float32(x))
		}
		if found := lse[(b*maskHeads+h)*maskQ+i]; sum > 0 {
			near(t, found, float32(math.Log(sum)))
		} else {
			equal(t, math.IsInf(float64(found), -1), true)
		}
	}
	if seen := n*maskHeads*maskK - hidden; hidden == 0 || seen == 0 {
		t.Fatalf("the mask hides %d keys of rows and shows %d", hidden, seen)
	}
}

// computes asks for attention and compares it.
func (a *Attention[T]) computes(t *testing.T, c *Client, sees func(b, h, i, j int) bool) {
	t.Helper()
	check(t, c.Attention(context.Background(), a))
	of := func(tensor any) []float32 { return tensor.(*Tensor[float32]).Data() }
	isNaive(t, of(a.Q), of(a.K), of(a.V), of(a.Out), a.LSE.Data(), maskBatch*maskQ, sees)
}

// blocksOf is a mask of 3 by 2 blocks of 64 rows and 128 keys, of each head its own; sees tells the same.
func blocksOf(t *testing.T, memory *Buffer) (mask *BlockMask, sees func(b, h, i, j int) bool) {
	t.Helper()
	seen := [maskHeads][3][]int32{{{0}, {0, 1}, {1}}, {{}, {0}, {0, 1}}, {{0, 1}, {}, {1}}, {{1}, {1}, {0}}}
	offsets, columns := make([]int32, maskHeads*4), make([]int32, maskHeads*6)
	for h, rows := range seen {
		n := 0
		for r, list := range rows {
			n += copy(columns[h*6+n:], list)
			offsets[h*4+r+1] = int32(n)
		}
	}
	mask = &BlockMask{Rows: 64, Keys: 128, Offsets: numbers(t, memory, offsets, 1, maskHeads, 4),
		Columns: numbers(t, memory, columns, 1, maskHeads, 6)}
	return mask, func(b, h, i, j int) bool {
		for _, column := range seen[h][i/64] {
			if int(column) == j/128 {
				return true
			}
		}
		return false
	}
}

// bitsOf is a mask of random bits for each sequence, which all heads share; sees tells the same.
func bitsOf(t *testing.T, memory *Buffer) (mask *Tensor[int32], sees func(b, h, i, j int) bool) {
	t.Helper()
	const words = 6 // the keys from 192 on are hidden
	mask = must(NewTensor[int32](memory, maskBatch, 1, maskQ, words))(t)
	seed := uint32(3)
	for i := range mask.Data() {
		seed = seed*1664525 + 1013904223
		mask.Data()[i] = int32(seed ^ seed>>16)
	}
	return mask, func(b, h, i, j int) bool {
		return j/32 < words && uint32(mask.Data()[(b*maskQ+i)*words+j/32])>>(j%32)&1 == 1
	}
}

// causalSees is what Causal alone lets a row see.
func causalSees(i, j int) bool { return j <= i+maskK-maskQ }

func (p *BlockPattern) sees(h, position, j int) bool {
	block, step := j/int(p.BlockTokens), (int(p.FirstHead)+h)*int(p.HeadStep)
	if p.HeadStep < 0 {
		step = (int(p.FirstHead) + h) / (maskHeads / maskKV) * -int(p.HeadStep)
	}
	return position/int(p.BlockTokens)-block < int(p.LocalBlocks) || (block+step+1)%int(p.VertStride) == 0
}

var patterns = []BlockPattern{
	{BlockTokens: 16, LocalBlocks: 2, VertStride: 4, HeadStep: 1},
	{BlockTokens: 32, LocalBlocks: 1, VertStride: 3, HeadStep: -2, FirstHead: 4},
}

func TestMaskOfBlocks(t *testing.T) {
	c := private(t)
	memory := must(c.Buffer(1 << 20))(t)
	a := masked(t, memory)
	mask, sees := blocksOf(t, memory)
	a.Blocks = mask
	a.computes(t, c, sees)
	a.Causal = true
	a.computes(t, c, func(b, h, i, j int) bool { return sees(b, h, i, j) && causalSees(i, j) })
}

func TestMaskOfBits(t *testing.T) {
	c := private(t)
	memory := must(c.Buffer(1 << 20))(t)
	a := masked(t, memory)
	mask, sees := bitsOf(t, memory)
	a.Mask = mask
	a.computes(t, c, sees)
	blocks, blockSees := blocksOf(t, memory)
	a.Blocks, a.Window = blocks, &Window{Left: 70, Right: 5}
	a.computes(t, c, func(b, h, i, j int) bool {
		at := i + maskK - maskQ
		return sees(b, h, i, j) && blockSees(b, h, i, j) && j >= at-70 && j <= at+5
	})
}

func TestMaskRagged(t *testing.T) {
	c := private(t)
	memory := must(c.Buffer(1 << 20))(t)
	a := masked(t, memory)
	for _, tensor := range []*Tensor[float32]{a.Q, a.K, a.V, a.Out} {
		n := tensor.shape
		tensor.shape = []int{n[0] * n[1], n[2], n[3]}
	}
	a.LSE = must(NewTensor[float32](memory, maskHeads, maskBatch*maskQ))(t)
	a.LengthsQ, a.LengthsK = []uint32{0, maskQ, 2 * maskQ}, []uint32{0, maskK, 2 * maskK}
	mask, sees := blocksOf(t, memory)
	bits, bitSees := bitsOf(t, memory)
	a.Blocks, a.Mask = mask, bits
	check(t, c.Attention(context.Background(), a))
	lse := make([]float32, a.LSE.Len()) // [batch, heads, n_q]
	for i, x := range a.LSE.Data() {
		h, b := i/(maskBatch*maskQ), i/maskQ%maskBatch
		lse[(b*maskHeads+h)*maskQ+i%maskQ] = x
	}
	isNaive(t, a.Q.Data(), a.K.Data(), a.V.Data(), a.Out.Data(), lse, maskBatch*maskQ,
		func(b, h, i, j int) bool { return sees(b, h, i, j) && bitSees(b, h, i, j) })
}

func TestMaskPattern(t *testing.T) {
	c := private(t)
	memory := must(c.Buffer(1 << 20))(t)
	a := masked(t, memory)
	a.Causal = true
	for i := range patterns {
		a.Pattern = &patterns[i]
		a.computes(t, c, func(b, h, i, j int) bool {
			return causalSees(i, j) && a.Pattern.sees(h, i+maskK-maskQ, j)
		})
	}
}

// A pattern over a sequence in pages of 8 tokens, and over the same tokens as new ones of a step.
func TestMaskPatternOfPagesAndSteps(t *testing.T) {
	c, ctx := private(t), context.Background()
	memory := must(c.Buffer(1 << 20))(t)
	tensor := func(shape ...int) *Tensor[float32] { return must(NewTensor[float32](memory, shape...))(t) }
	seed := uint32(5)
	k, v := tensor(maskK/8, 8, maskKV, maskDim), tensor(maskK/8, 8, maskKV, maskDim)
	q, out, lse := tensor(maskQ, maskHeads, maskDim), tensor(maskQ, maskHeads, maskDim), tensor(maskHeads, maskQ)
	random(&seed, q, k, v)
	table := make([]int32, maskK/8)
	for i := range table {
		table[i] = int32(i)
	}
	for i := range patterns {
		p := &patterns[i]
		sees := func(b, h, i, j int) bool { return causalSees(i, j) && p.sees(h, i+maskK-maskQ, j) }
		a := &PagesAttend[float32, float32]{Q: q, K: k, V: v, Out: out, LSE: lse,
			Table: numbers(t, memory, table, 1, maskK/8), Lengths: numbers(t, memory, []int32{maskK}, 1),
			Scores: Scores{Causal: true, Pattern: p}}
		check(t, c.PagesAttend(ctx, a))
		isNaive(t, q.Data(), k.Data(), v.Data(), out.Data(), lse.Data(), maskQ, sees)

		cache := must(c.CreateCache(CacheOptions{Dtype: DtypeF32, Layers: 1, KVHeads: maskKV, HeadDim: maskDim}))(t)
		sequence := must(cache.Sequence())(t)
		for first, end := 0, maskK-maskQ; first < maskK; first, end = end, maskK {
			step := must(c.Step(Item{Sequence: sequence, New: end - first}))(t)
			rows := &Attend[float32]{Q: tensor(end-first, maskHeads, maskDim), K: tensor(end-first, maskKV, maskDim),
				V: tensor(end-first, maskKV, maskDim), Out: tensor(end-first, maskHeads, maskDim),
				LSE: tensor(maskHeads, end-first), Scores: Scores{Pattern: p}}
			copy(rows.K.Data(), k.Data()[first*maskKV*maskDim:])
			copy(rows.V.Data(), v.Data()[first*maskKV*maskDim:])
			if first > 0 {
				copy(rows.Q.Data(), q.Data())
			}
			rows.Causal = true
			check(t, step.Attend(ctx, rows))
			check(t, step.Commit(ctx))
			if first > 0 {
				isNaive(t, q.Data(), k.Data(), v.Data(), rows.Out.Data(), rows.LSE.Data(), maskQ, sees)
			}
		}
	}
}

func TestMaskWrongUse(t *testing.T) {
	c, other, ctx := private(t), private(t), context.Background()
	memory, strange := must(c.Buffer(1<<20))(t), must(other.Buffer(1<<20))(t)
	a := masked(t, memory)
	good, _ := blocksOf(t, memory)
	for _, wrong := range []struct {
		mask  BlockMask
		errno syscall.Errno
		part  string
	}{
		{BlockMask{0, 0, good.Offsets, good.Columns}, syscall.EINVAL, "Blocks.Rows and Blocks.Keys are 0"},
		{BlockMask{64, 96, good.Offsets, good.Columns}, syscall.ENOTSUP, "block_keys 96; expected 64 or 128"},
		{BlockMask{-64, 64, good.Offsets, good.Columns}, syscall.ENOTSUP, "expected 64 or 128"},
		{BlockMask{64, 128, good.Offsets, nil}, syscall.EINVAL, "block_columns"},
		{BlockMask{128, 128, good.Offsets, good.Columns}, syscall.EINVAL, "block_offsets"},
	} {
		wrong := wrong
		a.Blocks = &wrong.mask
		says(t, c.Attention(ctx, a), wrong.errno, wrong.part)
	}
	a.Blocks, _ = blocksOf(t, strange)
	says(t, c.Attention(ctx, a), syscall.EINVAL, "another client")
	a.Blocks = nil
	a.Mask = numbers(t, memory, make([]int32, 7*maskQ), maskQ, 7)
	says(t, c.Attention(ctx, a), syscall.EINVAL, "mask.rank is 2; expected 4")
	a.Mask = numbers(t, memory, make([]int32, 7), 1, 1, 1, 7)
	says(t, c.Attention(ctx, a), syscall.EINVAL, "mask")
	a.Mask = nil
	for part, wrong := range map[string]BlockPattern{
		"pattern.block_tokens is 24; expected a multiple of 16": {BlockTokens: 24, LocalBlocks: 1, VertStride: 1},
		"pattern.vert_stride is 0; expected at least 1":         {BlockTokens: 16, LocalBlocks: 1},
		"no effect as block_tokens is 0":                        {LocalBlocks: 1, VertStride: 1},
	} {
		wrong := wrong
		a.Pattern = &wrong
		says(t, c.Attention(ctx, a), syscall.EINVAL, part)
	}
	a.Pattern = nil
	check(t, c.Attention(ctx, a))
	check(t, memory.Free()) // no failed request holds it
}
