package faclient

// #include "shim.h"
import "C"

import "context"

// PagesAttend is attention over keys and values in pages that the program manages, as engines do. struct
// fa_pages_attend in faclient.h describes it in full.
//
// Shapes: Q [rows, heads, dim], Out [rows, heads, dim_v], K [pages, page_tokens, kv_heads, dim], V [pages, page_tokens,
// kv_heads, dim_v], Table [batch, columns], Lengths [batch], LSE [heads, rows]. Key j of sequence b is token
// j%page_tokens of page Table[b][j/page_tokens]. Pages have 1 to 256 tokens. S is T, or E4M3.
//
// Numbers out of bounds are no error: they are bounded where they are read, and no table makes the daemon touch other
// memory than that of the tensors.
type PagesAttend[T Element, S Stored] struct {
	Q, Out         *Tensor[T]
	K, V           *Tensor[S]
	Table, Lengths *Tensor[int32]
	CuQ            *Tensor[int32] // [batch+1]: sequence b has the rows CuQ[b] to CuQ[b+1]-1; nil: each has as many
	MaxQ           int            // with CuQ: the rows of the sequence that has most
	MaxK           int            // keys of the longest sequence, or more; 0: as many as the table has room for
	// Rows that are written to pages first, [tokens, kv_heads, dim]: row i to token Slots[i]%page_tokens of page
	// Slots[i]/page_tokens. A slot that is negative or beyond the pages is skipped. nil: none.
	KNew, VNew *Tensor[T]
	Slots      *Tensor[int64]
	// [kv_heads], only with E4M3: an element is code * scale; nil: 1.
	KScales, VScales *Tensor[float32]
	PrefixLengths    *Tensor[int32]   // [batch], as of Attention, only with Causal; nil: all are 0
	LSE              *Tensor[float32] // the logarithm of the softmax's denominator; nil: not wanted
	HeadsFirst       bool             // K and V are [pages, kv_heads, page_tokens, dim]
	Deterministic    bool             // the same bits whatever other sequences there are
	Scores
}

// AnyPagesAttend is a PagesAttend of any types of elements.
type AnyPagesAttend interface {
	submitPages(c *Client) (*Request, error)
}

func (a *PagesAttend[T, S]) submitPages(c *Client) (*Request, error) {
	var q []int
	if a.Q != nil {
		q = a.Q.shape
	}
	scores, err := a.Scores.raw(c, C.FA_PAGES_CAUSAL, C.FA_PAGES_WINDOW, q)
	if err != nil {
		return nil, err
	}
	if a.Deterministic {
		scores.flags |= C.FA_PAGES_DETERMINISTIC
	}
	appends := a.KNew != nil || a.VNew != nil
	o := operands{client: c}
	all := C.struct_shim_pages_attend{scores: scores, max_q: size(a.MaxQ), max_k: size(a.MaxK),
		q: raw(a.Q, &o, false), k: raw(a.K, &o, appends), v: raw(a.V, &o, appends), out: raw(a.Out, &o, true),
		lse: raw(a.LSE, &o, true), table: raw(a.Table, &o, false), lengths: raw(a.Lengths, &o, false),
		cu_q: raw(a.CuQ, &o, false), k_new: raw(a.KNew, &o, false), v_new: raw(a.VNew, &o, false),
		slots: raw(a.Slots, &o, false), k_scales: raw(a.KScales, &o, false), v_scales: raw(a.VScales, &o, false),
		prefix_lengths: raw(a.PrefixLengths, &o, false)}
	if a.HeadsFirst {
		all.heads_first = 1
	}
	return c.submit(o, func(client C.uint64_t, ticket *C.struct_fa_ticket, e *C.struct_shim_error) C.int {
		return C.shim_pages_attend(client, &all, floatPointer(a.AlibiSlopes), floatPointer(a.Sinks), ticket, e)
	})
}

// SubmitPages asks for attention over pages and returns at once. Errors as of Submit.
func (c *Client) SubmitPages(attend AnyPagesAttend) (*Request, error) { return attend.submitPages(c) }

// PagesAttend asks for attention over pages and waits for it. A context that ends cancels it.
func (c *Client) PagesAttend(ctx context.Context, attend AnyPagesAttend) error {
	return run(ctx, func() (*Request, error) { return attend.submitPages(c) })
}

// PagesRange says which tokens of a sequence are copied, and to or from which pages.
type PagesRange struct {
	Layer         int // the first; there are as many as tensors
	First, Tokens uint64
	Pages         []uint32 // of the tensors, in the order of the tokens: as many as these need
	PageOffset    int      // the first token's place in its page
	HeadsFirst    bool     // tensors are [pages, kv_heads, page_tokens, head_dim]
}

// Layers are keys and values of several layers, a tensor [pages, page_tokens, kv_heads, head_dim] each. One of the two
// may be nil.
type Layers[T Element] struct{ K, V []*Tensor[T] }

// AnyLayers is Layers of any type of elements.
type AnyLayers interface {
	rawLayers(o *operands, isWritten bool) (k, v []C.struct_shim_tensor)
}

func (l Layers[T]) rawLayers(o *operands, isWritten bool) (k, v []C.struct_shim_tensor) {
	for _, side := range []struct {
		from []*Tensor[T]
		to   *[]C.struct_shim_tensor
	}{{l.K, &k}, {l.V, &v}} {
		for _, tensor := range side.from {
			*side.to = append(*side.to, raw(tensor, o, isWritten))
		}
	}
	return k, v
}

// ReadPages copies committed tokens of several layers to pages that the program manages, by one request. No page is
// named twice.
func (s *Sequence) ReadPages(ctx context.Context, from PagesRange, to AnyLayers) error {
	return run(ctx, func() (*Request, error) { return s.copyPages(from, to, true) })
}

// WritePages copies pages that the program manages into tokens of this sequence that the step has reserved, of several
// layers by one request. A page may be named twice.
func (s *Step) WritePages(ctx context.Context, sequence *Sequence, to PagesRange, from AnyLayers) error {
	if sequence.client != s.client {
		return invalid("the sequence is of another client")
	}
	return run(ctx, func() (*Request, error) {
		s.lock.RLock()
		defer s.lock.RUnlock()
		if s.handle == 0 {
			return nil, errEnded
		}
		return sequence.copyPages(to, from, false)
	})
}

func (s *Sequence) copyPages(r PagesRange, layers AnyLayers, reads bool) (*Request, error) {
	o := operands{client: s.client}
	k, v := layers.rawLayers(&o, reads)
	n := len(k)
	if n == 0 {
		n = len(v)
	}
	if len(k) > 0 && len(v) > 0 && len(k) != len(v) {
		o.release()
		return nil, invalid("V has %d layers, and K %d", len(v), len(k))
	}
	all := C.struct_shim_pages{sequence: s.number, first: C.uint64_t(r.First), n_tokens: C.uint64_t(r.Tokens),
		layer: size(r.Layer), n_layers: size(n), n_pages: size(len(r.Pages)), page_offset: size(r.PageOffset)}
	if r.HeadsFirst {
		all.heads_first = 1
	}
	call := func(client C.uint64_t, ticket *C.struct_fa_ticket, e *C.struct_shim_error) C.int {
		if reads {
			return C.shim_sequence_read_pages(client, &all, tensorPointer(k), tensorPointer(v),
				uintPointer(r.Pages), ticket, e)
		}
		return C.shim_sequence_write_pages(client, &all, tensorPointer(k), tensorPointer(v),
			uintPointer(r.Pages), ticket, e)
	}
	return s.client.submit(o, call)
}

func tensorPointer(list []C.struct_shim_tensor) *C.struct_shim_tensor {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}
