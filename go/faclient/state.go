package faclient

// #include "shim.h"
import "C"

// AnyState is a Tensor of any type of elements, with one dimension and as many bytes as a state of linear layers.
type AnyState interface {
	rawState(o *operands, isWritten bool) C.struct_shim_tensor
}

func (t *Tensor[T]) rawState(o *operands, isWritten bool) C.struct_shim_tensor {
	return raw(t, o, isWritten)
}

// ReadState copies a state of linear layers from the checkpoint after this many tokens; 0: the newest. ENOENT: there is
// none.
func (s *Sequence) ReadState(state int, tokens uint64, to AnyState) error {
	return s.copyState(state, tokens, to, true)
}

// WriteState copies a state into the checkpoint that this step writes of the sequence (Item.Checkpoint). The commit
// fails unless all states were written.
func (s *Step) WriteState(sequence *Sequence, state int, from AnyState) error {
	if sequence.client != s.client {
		return invalid("the sequence is of another client")
	}
	s.lock.RLock()
	defer s.lock.RUnlock()
	if s.handle == 0 {
		return errEnded
	}
	return sequence.copyState(state, 0, from, false)
}

func (s *Sequence) copyState(state int, tokens uint64, data AnyState, isWritten bool) error {
	o := operands{client: s.client}
	defer o.release()
	raw := data.rawState(&o, isWritten)
	if o.err != nil {
		return o.err
	}
	return s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_state(client, s.number, size(state), C.uint64_t(tokens), &raw, C.bool(!isWritten), e)
	})
}
