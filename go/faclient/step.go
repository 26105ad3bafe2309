package faclient

// #include "shim.h"
import "C"

import (
	"context"
	"sync"
)

// Item is a sequence of a step, and how many tokens it gets; 0: it is only read.
type Item struct {
	Sequence *Sequence
	New      int
	// The new tokens are a tree of guesses: new token i sees new token j if bit j%32 of word j/32 of row i is set. There
	// are New rows of (New+31)/32 words. nil: no tree.
	Tree []uint32
	// The step writes a checkpoint, of the states of linear layers after the new tokens (Step.WriteState). New may be 0.
	Checkpoint bool
}

// Step is reserved room for new tokens of some sequences. Attend appends and computes a layer; Commit makes the tokens
// part of their sequences, from when on they outlive the daemon. Close it in any case: it is aborted unless it was
// committed.
type Step struct {
	client *Client
	number uint64
	items  int
	n      int

	lock   sync.RWMutex // written by what ends the step
	handle C.uint64_t   // 0: it has ended
}

// Step begins a step. EBUSY: another client appends to one of the sequences.
func (c *Client) Step(items ...Item) (*Step, error) {
	s := &Step{client: c, items: len(items)}
	list := make([]C.uint64_t, 0, 2*len(items)+1)
	var trees, starts []uint32
	for _, item := range items {
		if item.Sequence == nil || item.Sequence.client != c {
			return nil, invalid("a sequence is of another client: find it by its name")
		}
		new := C.uint64_t(size(item.New))
		if item.Checkpoint {
			new |= C.FA_STEP_CHECKPOINT << 32
		}
		list = append(list, item.Sequence.number, new)
		s.n += item.New
		start := uint32(C.FA_STEP_NO_TREE)
		if item.Tree != nil {
			if words := item.New * ((item.New + 31) / 32); len(item.Tree) != words {
				return nil, invalid("Tree has %d words; expected %d for %d new tokens", len(item.Tree),
					words, item.New)
			}
			start = uint32(len(trees))
			trees = append(trees, item.Tree...)
		}
		starts = append(starts, start)
	}
	if trees == nil {
		starts = nil
	}
	list = append(list, 0) // so that there is a first one
	var number C.uint64_t
	err := c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_step_begin(client, &list[0], C.uint32_t(len(items)), uintPointer(trees),
			uintPointer(starts), &s.handle, &number, e)
	})
	if err != nil {
		return nil, err
	}
	s.number = uint64(number)
	return s, nil
}

// Number is SequenceInfo.Step of its sequences once it is committed: tells after a lost connection whether it was.
func (s *Step) Number() uint64 { return s.number }

// New returns the new tokens of all items: the rows of Q, K and V.
func (s *Step) New() int { return s.n }

// Rotary is the rotary embedding of queries and new keys.
type Rotary struct {
	Dim         int      // elements of each head that are rotated
	First       int      // the first of them, a multiple of 8: 512 of 576 for MLA
	Base        float64  // 0: 10000
	Scale       float64  // of positions; 0: 1
	Interleaved bool     // pairs are 2i and 2i+1; else i and i+Dim/2
	Positions   []uint32 // of each new token; nil: its number in its sequence
}

// Attend is one layer of a step: keys and values that are appended, queries over all tokens, or both.
//
// Shapes: Q [new, heads, head_dim], K [new, kv_heads, head_dim], V [new, kv_heads, head_dim_v], Out [new, heads,
// head_dim_v], LSE [heads, new], where new is Step.New.
type Attend[T Element] struct {
	Layer  int
	Q, Out *Tensor[T]       // nil: appends only
	K, V   *Tensor[T]       // nil: they were appended before; V nil as well where values are in keys
	LSE    *Tensor[float32] // nil: not wanted
	Scores
	Cache         *Cache // nil: the step's only one
	Deterministic bool   // the same bits whatever other sequences the step has
	Rotary        *Rotary
	PrefixLengths []uint32 // one for each item of the step, as of Attention, only with Causal; nil: all are 0
}

// AnyAttend is an Attend of any type of elements.
type AnyAttend interface {
	submit(s *Step) (*Request, error)
}

func (a *Attend[T]) submit(s *Step) (*Request, error) {
	var q []int
	if a.Q != nil {
		q = a.Q.shape
	}
	scores, err := a.Scores.raw(s.client, C.FA_STEP_CAUSAL, C.FA_STEP_WINDOW, q)
	if err != nil {
		return nil, err
	}
	all := C.struct_shim_attend{scores: scores, layer: size(a.Layer)}
	if a.Deterministic {
		all.scores.flags |= C.FA_STEP_DETERMINISTIC
	}
	if a.Cache != nil {
		all.cache = a.Cache.number
	}
	var positions []uint32
	if a.Rotary != nil {
		positions = a.Rotary.Positions
		// The library reads one for each token of Q or K.
		for _, tensor := range []*Tensor[T]{a.Q, a.K} {
			if positions != nil && tensor != nil && len(tensor.shape) > 0 && len(positions) != tensor.shape[0] {
				return nil, invalid("Positions has %d numbers; expected %d, one for each new token",
					len(positions), tensor.shape[0])
			}
		}
		if a.Rotary.Interleaved {
			all.scores.flags |= C.FA_STEP_ROTARY_INTERLEAVED
		}
		all.rotary_dim, all.rotary_first = size(a.Rotary.Dim), size(a.Rotary.First)
		all.rotary_base, all.rotary_scale = C.double(a.Rotary.Base), C.double(a.Rotary.Scale)
	}
	if err := checkPrefixes(a.PrefixLengths, s.items); err != nil {
		return nil, err
	}
	o := operands{client: s.client}
	all.q, all.out = raw(a.Q, &o, false), raw(a.Out, &o, true)
	all.k_new, all.v_new = raw(a.K, &o, false), raw(a.V, &o, false)
	all.lse = raw(a.LSE, &o, true)
	return s.submit(o, func(step C.uint64_t, ticket *C.struct_fa_ticket, e *C.struct_shim_error) C.int {
		return C.shim_step_attend(step, &all, floatPointer(a.AlibiSlopes), floatPointer(a.Sinks),
			uintPointer(positions), uintPointer(a.PrefixLengths), ticket, e)
	})
}

// submit sends a request of the step.
func (s *Step) submit(o operands, send func(step C.uint64_t, ticket *C.struct_fa_ticket,
	e *C.struct_shim_error) C.int) (*Request, error) {
	s.lock.RLock()
	defer s.lock.RUnlock()
	if s.handle == 0 {
		o.release()
		return nil, errEnded
	}
	return s.client.submit(o, func(_ C.uint64_t, ticket *C.struct_fa_ticket, e *C.struct_shim_error) C.int {
		return send(s.handle, ticket, e)
	})
}

var errEnded = invalid("the step has ended")

// Submit asks for a layer and returns at once.
func (s *Step) Submit(attend AnyAttend) (*Request, error) { return attend.submit(s) }

// Attend asks for a layer and waits for it. An error that the daemon finds makes the commit fail with ECANCELED.
func (s *Step) Attend(ctx context.Context, attend AnyAttend) error {
	return run(ctx, func() (*Request, error) { return attend.submit(s) })
}

// Write writes keys and values of new tokens without computing, from this token of the sequence on.
func (s *Step) Write(sequence *Sequence, layer int, first uint64, from AnyRows) error {
	if sequence.client != s.client {
		return invalid("the sequence is of another client")
	}
	s.lock.RLock()
	defer s.lock.RUnlock()
	if s.handle == 0 {
		return errEnded
	}
	return sequence.copy(layer, first, from, false)
}

// Commit ends the step after its requests: its tokens then belong to their sequences.
//
// ECANCELED: a layer was not computed, and the step is aborted. After ECONNRESET it may have happened: compare
// Number.
func (s *Step) Commit(ctx context.Context) error { return s.commit(ctx, nil, nil) }

// CommitOnly ends the step, but keeps only some new tokens of each item: those of these numbers, ascending, counted
// from the item's first new token.
func (s *Step) CommitOnly(ctx context.Context, keep ...[]uint32) error {
	if len(keep) != s.items {
		return invalid("keep has %d entries; expected %d, as the step has items", len(keep), s.items)
	}
	all, ends := []uint32{}, []uint32{0}
	for _, ofItem := range keep {
		all = append(all, ofItem...)
		ends = append(ends, uint32(len(all)))
	}
	return s.commit(ctx, all, ends)
}

func (s *Step) commit(ctx context.Context, keep, ends []uint32) error {
	err := run(ctx, func() (*Request, error) {
		return s.submit(operands{client: s.client}, func(step C.uint64_t, ticket *C.struct_fa_ticket,
			e *C.struct_shim_error) C.int {
			return C.shim_step_commit(step, uintPointer(keep), uintPointer(ends), ticket, e)
		})
	})
	if err == nil {
		s.Close()
	}
	return err
}

// Abort ends the step; its sequences are as before. Waits for its requests.
func (s *Step) Abort() error {
	s.lock.RLock()
	err := errEnded
	if s.handle != 0 {
		err = s.client.call(func(_ C.uint64_t, e *C.struct_shim_error) C.int {
			return C.shim_step_abort(s.handle, e)
		})
	}
	s.lock.RUnlock()
	s.Close()
	return err
}

// Close ends the step: it is aborted unless it was committed. May be called again.
func (s *Step) Close() {
	s.lock.Lock()
	defer s.lock.Unlock()
	if _, err := s.client.enter(); err == nil {
		defer s.client.exit()
		C.shim_step_free(s.handle)
	}
	s.handle = 0
}
