package faclient

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"
)

const (
	layers = 2
	dim    = 16
)

func options(name string) CacheOptions {
	return CacheOptions{Dtype: DtypeF32, Layers: layers, KVHeads: 1, HeadDim: dim, PageTokens: 16, Name: name}
}

func cacheAndSequence(t *testing.T, c *Client) (*Cache, *Sequence) {
	t.Helper()
	cache := must(c.CreateCache(options("")))(t)
	return cache, must(cache.Sequence())(t)
}

// rows are tokens whose elements all have these values.
func rows(t *testing.T, c *Client, values ...float32) *Tensor[float32] {
	t.Helper()
	tensor := must(NewTensor[float32](must(c.Buffer(4*dim*len(values)))(t), len(values), 1, dim))(t)
	for i := range tensor.Data() {
		tensor.Data()[i] = values[i/dim]
	}
	return tensor
}

func counting(n int) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i)
	}
	return values
}

// appendTo appends tokens with these values, whose keys and queries are zero: attention is the mean of the values. It
// returns the last token's.
func appendTo(t *testing.T, c *Client, s *Sequence, values ...float32) float32 {
	t.Helper()
	step := must(c.Step(Item{Sequence: s, New: len(values)}))(t)
	defer step.Close()
	zero := make([]float32, len(values))
	var mean float32
	for layer := 0; layer < layers; layer++ {
		a := &Attend[float32]{Layer: layer, K: rows(t, c, zero...), V: rows(t, c, values...),
			Q: rows(t, c, zero...), Out: rows(t, c, zero...), Scores: Scores{Causal: true}}
		check(t, step.Attend(background, a))
		mean = a.Out.Data()[(len(values)-1)*dim]
	}
	check(t, step.Commit(background))
	return mean
}

func TestStepIsAborted(t *testing.T) {
	c := private(t)
	_, s := cacheAndSequence(t, c)
	appendTo(t, c, s, counting(3)...)
	step := must(c.Step(Item{Sequence: s, New: 2}))(t)
	a := &Attend[float32]{K: rows(t, c, 0, 0), V: rows(t, c, 9, 9)}
	check(t, step.Attend(background, a))
	step.Close()
	step.Close()
	says(t, step.Attend(background, a), syscall.EINVAL, "the step has ended")
	says(t, step.Commit(background), syscall.EINVAL, "the step has ended")
	says(t, step.Abort(), syscall.EINVAL, "the step has ended")
	equal(t, must(s.Length())(t), 3)
	near(t, appendTo(t, c, s, 3), 1.5)
}

func TestTree(t *testing.T) {
	c := private(t)
	_, s := cacheAndSequence(t, c)
	appendTo(t, c, s, 4)
	// Two guesses, 1 and 2, which both follow the first token and do not see each other.
	step := must(c.Step(Item{Sequence: s, New: 2, Tree: []uint32{0b01, 0b10}}))(t)
	for layer := 0; layer < layers; layer++ {
		a := &Attend[float32]{Layer: layer, K: rows(t, c, 0, 0), V: rows(t, c, 1, 2), Q: rows(t, c, 0, 0),
			Out: rows(t, c, 0, 0)}
		check(t, step.Attend(background, a))
		near(t, a.Out.Data()[0], 2.5)
		near(t, a.Out.Data()[dim], 3)
	}
	says(t, step.CommitOnly(background), syscall.EINVAL, "keep has 0")
	check(t, step.CommitOnly(background, []uint32{1}))
	equal(t, must(s.Length())(t), 2)
	near(t, appendTo(t, c, s, 0), 2)
}

func TestReadAndWrite(t *testing.T) {
	c := private(t)
	_, s := cacheAndSequence(t, c)
	step := must(c.Step(Item{Sequence: s, New: 3}))(t)
	for layer := 0; layer < layers; layer++ {
		check(t, step.Write(s, layer, 0, Rows[float32]{rows(t, c, 1, 2, float32(layer)), rows(t, c, 5, 6, 7)}))
	}
	equal(t, step.New(), 3)
	check(t, step.Commit(background))
	equal(t, must(s.Info())(t).Step, step.Number())
	k, v := rows(t, c, 0, 0), rows(t, c, 0, 0)
	check(t, s.Read(1, 1, Rows[float32]{k, v}))
	for i, expected := range []float32{2, 1} {
		equal(t, k.Data()[i*dim], expected)
	}
	for i, expected := range []float32{6, 7} {
		equal(t, v.Data()[i*dim], expected)
	}
}

func TestRotary(t *testing.T) {
	c := private(t)
	cache, _ := cacheAndSequence(t, c)
	attend := func(positions ...uint32) (float32, error) {
		step := must(c.Step(Item{Sequence: must(cache.Sequence())(t), New: 2}))(t)
		defer step.Close()
		a := &Attend[float32]{K: rows(t, c, 1, 1), V: rows(t, c, 0, 1), Q: rows(t, c, 1, 1), Out: rows(t, c, 0, 0),
			Scores: Scores{Causal: true}, Rotary: &Rotary{Dim: dim, Positions: positions}}
		err := step.Attend(background, a)
		return a.Out.Data()[dim], err
	}
	// Scores depend on the distance alone: that of equal positions is the largest for both keys.
	near(t, must(attend(7, 7))(t), 0.5)
	apart := must(attend(0, 3))(t)
	if apart < 0.51 {
		t.Fatalf("it is %v", apart)
	}
	near(t, must(attend(10, 13))(t), apart)
	_, err := attend(1)
	says(t, err, syscall.EINVAL, "Positions has 1")
}

func TestWrongUseOfCaches(t *testing.T) {
	c := private(t)
	stranger := connect(t, &Options{Socket: c.SocketPath()})
	_, s := cacheAndSequence(t, c)
	_, err := stranger.Step(Item{Sequence: s, New: 1})
	says(t, err, syscall.EINVAL, "of another client")
	_, err = c.Step(Item{Sequence: s, New: 2, Tree: []uint32{1}})
	says(t, err, syscall.EINVAL, "Tree has 1")
	_, err = c.Step(Item{Sequence: s, New: -1})
	says(t, err, syscall.EINVAL, " ")
	scaled := options("")
	scaled.Store, scaled.KScales, scaled.VScales = StoreInt8, []float32{1}, []float32{1, 1}
	_, err = c.CreateCache(scaled)
	says(t, err, syscall.EINVAL, "KScales has 1")
	step := must(c.Step(Item{Sequence: s, New: 2}))(t)
	says(t, step.Attend(background, &Attend[float32]{}), syscall.EINVAL, "nothing is asked")
	says(t, step.Attend(background, &Attend[float32]{K: rows(t, c, 0, 0), V: rows(t, c, 0, 0),
		Scores: Scores{Sinks: []float32{0}}}), syscall.EINVAL, "Sinks has 1")
	says(t, step.Attend(background, &Attend[float32]{K: rows(t, stranger, 0, 0), V: rows(t, c, 0, 0)}),
		syscall.EINVAL, "of another client")
	half := must(NewTensor[F16](must(c.Buffer(256))(t), 2, 1, dim))(t)
	says(t, step.Attend(background, &Attend[F16]{K: half, V: half}), syscall.ENOTSUP, "dtype")
	says(t, step.Commit(background), syscall.ECANCELED, " ")
	equal(t, must(s.Length())(t), 0)
	check(t, s.Remove())
	says(t, s.Remove(), syscall.ESTALE, " ")
}

func TestCommitIsCancelled(t *testing.T) {
	c := private(t)
	_, s := cacheAndSequence(t, c)
	first := must(c.Submit(long(t, c)))(t)
	step := must(c.Step(Item{Sequence: s, New: 1}))(t)
	for layer := 0; layer < layers; layer++ {
		must(step.Submit(&Attend[float32]{Layer: layer, K: rows(t, c, 0), V: rows(t, c, 0)}))(t)
	}
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	err := step.Commit(ctx)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the error is %v", err)
	}
	must(first.Cancel())(t)
	step.Close()
	equal(t, must(s.Length())(t), 0)
}

func TestOtherProcessesGoOn(t *testing.T) {
	tokens := make([]uint32, 50)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	if c := other(t); c != nil {
		prompt := must(c.FindSequence("go prompt"))(t)
		equal(t, must(prompt.Length())(t), 40)
		near(t, appendTo(t, c, must(prompt.Fork(33))(t), 16), 16)
		cache := must(c.FindCache("go shared"))(t)
		equal(t, must(cache.Find(Prefix{Tokens: tokens, Extra: []byte("other")}))(t), 0)
		attached, found, err := cache.Attach(Prefix{Tokens: tokens})
		check(t, err)
		equal(t, found, 32)
		near(t, appendTo(t, c, attached, 15.5), 15.5)
		return
	}
	c := private(t)
	shape := options("go shared")
	shape.Mode = ModeReadUser | ModeAppendUser
	cache := must(c.CreateCache(shape))(t)
	prompt := must(cache.Sequence())(t)
	near(t, appendTo(t, c, prompt, counting(40)...), 19.5)
	check(t, prompt.SetName("go prompt", 0, 10*time.Minute))
	equal(t, must(prompt.Publish(Prefix{Tokens: tokens[:40]}))(t), 2)
	runOther(t, c)
	equal(t, must(prompt.Length())(t), 40)
	eventually(t, "the other process's sequences end with it", func() bool {
		return must(cache.Info())(t).Sequences == 1
	})
	check(t, cache.Remove())
	_, err := prompt.Length()
	says(t, err, syscall.ESTALE, " ")
}

func TestTokensOutliveTheDaemon(t *testing.T) {
	daemon := startSupervised(t)
	c := daemon.connect(t)
	_, s := cacheAndSequence(t, c)
	near(t, appendTo(t, c, s, counting(20)...), 9.5)

	// Killed between steps: nobody sees it.
	daemon.kill(t)
	near(t, appendTo(t, c, s, 9.5), 9.5)

	// Killed within a step: the step is lost, and its tokens.
	step := must(c.Step(Item{Sequence: s, New: 1}))(t)
	check(t, step.Attend(background, &Attend[float32]{K: rows(t, c, 0), V: rows(t, c, 1)}))
	daemon.kill(t)
	if err := step.Commit(background); !IsLost(err) {
		t.Fatalf("the error is %v", err)
	}
	step.Close()
	equal(t, must(s.Length())(t), 21)
	near(t, appendTo(t, c, s, 9.5), 9.5)
	info := must(c.Info())(t)
	equal(t, info.Reconnects, 2)
	equal(t, info.Resumed, 2)
}
