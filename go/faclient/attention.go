package faclient

// #include "shim.h"
import "C"

import (
	"context"
	"math"
)

// Window limits what a row sees: this many keys before and after its own. Below 0: all.
type Window struct{ Left, Right int }

// Scores say how scores are computed. The zero value means every key, with the usual scale.
type Scores struct {
	Causal      bool          // row i sees only keys up to its own
	Window      *Window       // nil: all keys
	Scale       float32       // the factor of q·k; 0: 1/sqrt(head dim)
	Softcap     float32       // scores become softcap * tanh(score / softcap); 0: they stay
	AlibiSlopes []float32     // one for each head of q, by which its scores fall with each key of distance
	Sinks       []float32     // one for each head of q, which takes its share of the softmax and has no value
	ChunkTokens uint64        // rows see keys of their own chunk of so many tokens; 0: of all
	Pattern     *BlockPattern // nil: none
	Stream      *Stream       // nil: the one that always exists
}

// BlockPattern is vLLM's mask of local and strided blocks. A row at position p of its sequence sees key j only if
//
//	p/BlockTokens - j/BlockTokens < LocalBlocks, or
//	j/BlockTokens + (FirstHead+h)*HeadStep + 1 is a multiple of VertStride
//
// for query head h. If HeadStep is negative, KV heads count instead: the product is then (FirstHead+h)/group * -HeadStep,
// where group query heads share a KV head.
//
// EINVAL: BlockTokens is no multiple of 16 or VertStride is 0; or BlockTokens is 0, which means no pattern, and another
// number is not. ENOTSUP, on a GPU: no kernel has the pattern, as over pages.
type BlockPattern struct {
	BlockTokens, LocalBlocks, VertStride uint32
	HeadStep                             int32
	FirstHead                            uint32 // the number of Q's first head, where processes share the heads
}

// BlockMask is a block-sparse mask in compressed rows. Row i of a sequence is in row block i/Rows, key j in key block
// j/Keys. Row block r sees the key blocks Columns[Offsets[r]] to Columns[Offsets[r+1]-1], which ascend. Time is in
// proportion to the blocks that are seen.
//
// Shapes: Offsets [batch or 1, heads or 1, ceil(n_q/Rows) + 1], Columns [batch or 1, heads or 1, n]. A size of 1 is
// shared by all sequences, or heads; n_q is that of the longest sequence. Both are inputs of the request until its end.
//
// EINVAL: a tensor is missing or has another shape. ENOTSUP: Rows or Keys is neither 64 nor 128. The numbers in the
// tensors are not checked but bounded where they are read: an offset to 0 to n, and columns that are no block of the
// sequence or do not ascend are skipped.
type BlockMask struct {
	Rows, Keys       int // 64 or 128
	Offsets, Columns *Tensor[int32]
}

// raw returns what the shim takes, with these flags; q tells the heads.
func (s *Scores) raw(c *Client, causal, window C.uint32_t, q []int) (C.struct_shim_scores, error) {
	raw := C.struct_shim_scores{scale: C.float(s.Scale), softcap: C.float(s.Softcap),
		chunk_tokens: C.uint64_t(s.ChunkTokens)}
	if s.Causal {
		raw.flags |= causal
	}
	if s.Window != nil {
		raw.flags |= window
		raw.window_left, raw.window_right = side(s.Window.Left), side(s.Window.Right)
	}
	if p := s.Pattern; p != nil {
		raw.pattern = C.struct_fa_block_pattern{block_tokens: C.uint32_t(p.BlockTokens),
			local_blocks: C.uint32_t(p.LocalBlocks), vert_stride: C.uint32_t(p.VertStride),
			head_step: C.int32_t(p.HeadStep), first_head: C.uint32_t(p.FirstHead)}
	}
	heads := 0
	if len(q) >= 2 {
		heads = q[len(q)-2]
	}
	for _, list := range []struct {
		name   string
		values []float32
	}{{"AlibiSlopes", s.AlibiSlopes}, {"Sinks", s.Sinks}} {
		if list.values != nil && (len(list.values) != heads || heads == 0) {
			return raw, invalid("%s has %d numbers; expected %d, the heads of q", list.name,
				len(list.values), heads)
		}
	}
	var err error
	raw.stream, err = s.Stream.of(c)
	return raw, err
}

func side(n int) C.int64_t {
	if n < 0 {
		return -1
	}
	return C.int64_t(n)
}

// Attention is softmax(scale * q kT) v, the softmax in float32. struct fa_attention in faclient.h has the formula in
// full.
//
// Shapes: Q [batch, n_q, heads, dim], K [batch, n_k, kv_heads, dim], V [batch, n_k, kv_heads, dim_v], Out [batch, n_q,
// heads, dim_v], LSE [batch, heads, n_q]. heads is a multiple of kv_heads.
//
// With lengths the batch is ragged, and all are without its dimension: sequence b has the rows LengthsQ[b] to
// LengthsQ[b+1]-1 of Q and Out, and LengthsK[b] to LengthsK[b+1]-1 of K and V. Both begin with 0.
type Attention[T Element] struct {
	Q, K, V, Out *Tensor[T]
	LSE          *Tensor[float32] // the logarithm of the softmax's denominator; nil: not wanted
	Scores
	LengthsQ, LengthsK []uint32
	// One for each sequence: Causal hides none of its first PrefixLengths[b] keys from any row. Only with Causal.
	PrefixLengths []uint32
	// A row sees only keys that Blocks, Mask, Pattern and Causal, Window and ChunkTokens all let it see. On a GPU
	// Blocks and Mask need elements of 16 bits (ENOTSUP).
	Blocks *BlockMask // nil: none
	// [batch or 1, heads or 1, n_q, words]: row i sees key j if bit j%32 of word j/32 is set. Keys behind the words are
	// hidden. An input of the request until its end; nil: none.
	Mask *Tensor[int32]
}

// AnyAttention is an Attention of any type of elements.
type AnyAttention interface {
	submit(c *Client) (*Request, error)
}

func (a *Attention[T]) submit(c *Client) (*Request, error) {
	var q []int
	if a.Q != nil {
		q = a.Q.shape
	}
	scores, err := a.Scores.raw(c, C.FA_ATTENTION_CAUSAL, C.FA_ATTENTION_WINDOW, q)
	if err != nil {
		return nil, err
	}
	batch := 0
	if a.LengthsQ != nil || a.LengthsK != nil {
		batch = len(a.LengthsQ) - 1
		if len(a.LengthsQ) != len(a.LengthsK) || batch < 1 || batch > math.MaxInt32 {
			return nil, invalid("LengthsQ has %d numbers and LengthsK %d; expected as many, and one more "+
				"than sequences", len(a.LengthsQ), len(a.LengthsK))
		}
	}
	sequences := batch
	if sequences == 0 && len(q) > 0 {
		sequences = q[0]
	}
	if err := checkPrefixes(a.PrefixLengths, sequences); err != nil {
		return nil, err
	}
	o := operands{client: c}
	all := C.struct_shim_attention{scores: scores, batch: C.uint32_t(batch), q: raw(a.Q, &o, false),
		k: raw(a.K, &o, false), v: raw(a.V, &o, false), out: raw(a.Out, &o, true),
		lse: raw(a.LSE, &o, true), mask: raw(a.Mask, &o, false)}
	if b := a.Blocks; b != nil {
		if b.Rows == 0 && b.Keys == 0 {
			o.release()
			return nil, invalid("Blocks.Rows and Blocks.Keys are 0; expected 64 or 128")
		}
		all.block_rows, all.block_keys = size(b.Rows), size(b.Keys)
		all.block_offsets, all.block_columns = raw(b.Offsets, &o, false), raw(b.Columns, &o, false)
	}
	return c.submit(o, func(client C.uint64_t, ticket *C.struct_fa_ticket, e *C.struct_shim_error) C.int {
		return C.shim_attention(client, &all, uintPointer(a.LengthsQ), uintPointer(a.LengthsK),
			floatPointer(a.AlibiSlopes), floatPointer(a.Sinks), uintPointer(a.PrefixLengths), ticket, e)
	})
}

// checkPrefixes checks what the library reads of as many sequences.
func checkPrefixes(prefixes []uint32, sequences int) error {
	if prefixes != nil && len(prefixes) != sequences {
		return invalid("PrefixLengths has %d numbers; expected %d, one for each sequence", len(prefixes), sequences)
	}
	return nil
}

// Submit asks for attention and returns at once. EAGAIN: Info.MaxRequests are in flight. Errors that only the
// daemon finds come with Request.Wait.
func (c *Client) Submit(attention AnyAttention) (*Request, error) { return attention.submit(c) }

// Attention asks for attention and waits for it. A context that ends cancels it.
func (c *Client) Attention(ctx context.Context, attention AnyAttention) error {
	return run(ctx, func() (*Request, error) { return attention.submit(c) })
}
