package faclient_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"syscall"

	"faclient"
)

func Example() {
	client, err := faclient.Connect(&faclient.Options{Spawn: true}) // the daemon that runs, or one of its own
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	memory, err := client.Buffer(4 * 4 * 16 * 2 * 64)
	if err != nil {
		log.Fatal(err)
	}
	tensor := func() *faclient.Tensor[float32] {
		t, err := faclient.NewTensor[float32](memory, 1, 16, 2, 64) // batch, tokens, heads, dim
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	a := &faclient.Attention[float32]{Q: tensor(), K: tensor(), V: tensor(), Out: tensor(),
		Scores: faclient.Scores{Causal: true}}
	for i := range a.V.Data() {
		a.V.Data()[i] = float32(i / 128) // token i has the value i
	}
	if err := client.Attention(context.Background(), a); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the mean of 0 to 15 is", a.Out.Data()[15*128])
	// Output: the mean of 0 to 15 is 7.5
}

// A step appends new tokens to a sequence and attends to all of them.
func ExampleStep() {
	ctx := context.Background()
	client, err := faclient.Connect(&faclient.Options{Private: true})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	cache, err := client.CreateCache(faclient.CacheOptions{Dtype: faclient.DtypeBF16, Layers: 1, KVHeads: 1, HeadDim: 64})
	if err != nil {
		log.Fatal(err)
	}
	sequence, err := cache.Sequence()
	if err != nil {
		log.Fatal(err)
	}
	memory, err := client.Buffer(1 << 16)
	if err != nil {
		log.Fatal(err)
	}
	tensor := func(heads int) *faclient.Tensor[faclient.BF16] {
		t, err := faclient.NewTensor[faclient.BF16](memory, 5, heads, 64)
		if err != nil {
			log.Fatal(err)
		}
		return t
	}

	step, err := client.Step(faclient.Item{Sequence: sequence, New: 5})
	if err != nil {
		log.Fatal(err)
	}
	defer step.Close() // aborts it, unless it was committed
	layer := &faclient.Attend[faclient.BF16]{Layer: 0, Q: tensor(4), K: tensor(1), V: tensor(1), Out: tensor(4),
		Scores: faclient.Scores{Causal: true}}
	if err := step.Attend(ctx, layer); err != nil {
		log.Fatal(err)
	}
	if err := step.Commit(ctx); err != nil { // from here on the tokens outlive the daemon
		log.Fatal(err)
	}
	fmt.Println(sequence.Length())
	// Output: 5 <nil>
}

// An engine's own pages: a table says which of them a sequence has, slots say where new rows go.
func ExamplePagesAttend() {
	client, err := faclient.Connect(&faclient.Options{Private: true})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	memory, err := client.Buffer(1 << 16)
	if err != nil {
		log.Fatal(err)
	}
	tensor := func(shape ...int) *faclient.Tensor[float32] {
		t, err := faclient.NewTensor[float32](memory, shape...)
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	table, err := faclient.NewTensor[int32](memory, 1, 2)
	if err != nil {
		log.Fatal(err)
	}
	lengths, err := faclient.NewTensor[int32](memory, 1)
	if err != nil {
		log.Fatal(err)
	}
	slots, err := faclient.NewTensor[int64](memory, 1)
	if err != nil {
		log.Fatal(err)
	}
	a := &faclient.PagesAttend[float32, float32]{Q: tensor(1, 2, 16), Out: tensor(1, 2, 16),
		K: tensor(8, 4, 1, 16), V: tensor(8, 4, 1, 16), // 8 pages of 4 tokens
		KNew: tensor(1, 1, 16), VNew: tensor(1, 1, 16), Table: table, Lengths: lengths, Slots: slots}
	copy(table.Data(), []int32{5, 2}) // the sequence's pages
	lengths.Data()[0] = 5             // with the new one
	slots.Data()[0] = 2 * 4           // the first of page 2
	for i := range a.VNew.Data() {
		a.VNew.Data()[i] = 5
	}
	if err := client.PagesAttend(context.Background(), a); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the mean of four zeros and a five is", a.Out.Data()[0])
	// Output: the mean of four zeros and a five is 1
}

// Errors have an errno and a sentence.
func ExampleError() {
	client, err := faclient.Connect(&faclient.Options{Private: true})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	_, err = client.FindSequence("prompt")
	fmt.Println(errors.Is(err, syscall.ENOENT))
	// Output: true
}
