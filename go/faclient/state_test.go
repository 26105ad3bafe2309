package faclient

import (
	"errors"
	"syscall"
	"testing"
)

func TestStates(t *testing.T) {
	c := private(t)
	o := options("")
	o.States, o.CheckpointTokens = []uint32{400, 64}, 32
	cache := must(c.CreateCache(o))(t)
	sequence := must(cache.Sequence())(t)
	buffer := must(c.Buffer(4096))(t)
	first := must(NewTensor[float32](buffer, 100))(t)
	second := must(NewTensor[int64](buffer, 8))(t)
	copy(first.Data(), counting(100))
	second.Data()[7] = -1

	write := func(n int, all bool) error {
		step := must(c.Step(Item{Sequence: sequence, New: n, Checkpoint: true}))(t)
		defer step.Close()
		check(t, step.WriteState(sequence, 0, first))
		if all {
			check(t, step.WriteState(sequence, 1, second))
		}
		return step.Commit(background)
	}
	check(t, write(32, true))
	if err := write(5, false); !errors.Is(err, syscall.EINVAL) {
		t.Fatal(err)
	}
	info := must(sequence.Info())(t)
	if info.Length != 32 || info.Checkpoint != 32 || info.Checkpoints != 1 {
		t.Fatal(info)
	}
	got := must(NewTensor[float32](buffer, 100))(t)
	check(t, sequence.ReadState(0, 32, got))
	for i, x := range got.Data() {
		if x != float32(i) {
			t.Fatal(i, x)
		}
	}
	if err := sequence.ReadState(0, 31, got); !errors.Is(err, syscall.ENOENT) {
		t.Fatal(err)
	}
	if err := sequence.ReadState(1, 0, got); !errors.Is(err, syscall.EINVAL) {
		t.Fatal(err)
	}
	if left := must(sequence.TruncateTo(31))(t); left != 0 {
		t.Fatal(left)
	}
}
