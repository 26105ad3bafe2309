package faclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var background = context.Background()

func tensors(t *testing.T, c *Client, shape ...int) *Attention[float32] {
	t.Helper()
	n := 1
	for _, size := range shape {
		n *= size
	}
	memory := must(c.Buffer(4*4*n + 4096))(t)
	made := make([]*Tensor[float32], 4)
	for i := range made {
		made[i] = must(NewTensor[float32](memory, shape...))(t)
		for j, data := 0, made[i].Data(); j < len(data) && i < 3; j++ {
			step := []int{7, 11, 13}[i]
			data[j] = float32(j%step) / float32(step)
		}
	}
	return &Attention[float32]{Q: made[0], K: made[1], V: made[2], Out: made[3]}
}

// long returns one that takes seconds.
func long(t *testing.T, c *Client) *Attention[float32] {
	t.Helper()
	return tensors(t, c, 1, 8192, 8, 128)
}

func cancelled(t *testing.T, c *Client) int {
	t.Helper()
	var status struct {
		Sessions []struct {
			Session   uint64
			Cancelled int
		}
	}
	check(t, json.Unmarshal([]byte(must(c.Status())(t)), &status))
	own := must(c.Info())(t).Session
	for _, session := range status.Sessions {
		if session.Session == own {
			return session.Cancelled
		}
	}
	t.Fatal("the status lacks this session")
	return 0
}

func TestRequest(t *testing.T) {
	c := private(t)
	a := tensors(t, c, 1, 5, 2, 16)
	check(t, c.Attention(background, a))
	expected := append([]float32(nil), a.Out.Data()...)
	if expected[1] == 0 {
		t.Fatal("nothing was computed")
	}
	for i := range a.Out.Data() {
		a.Out.Data()[i] = 0
	}
	r := must(c.Submit(a))(t)
	check(t, r.Wait(background))
	check(t, r.Wait(background)) // any number of times
	times, ended := r.Times()
	if !ended || times.Queued > times.Started || times.Started > times.Finished {
		t.Fatalf("the times are %v", times)
	}
	for i, x := range a.Out.Data() {
		equal(t, x, expected[i])
	}
}

func TestContextCancels(t *testing.T) {
	c := private(t)
	a := long(t, c)
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	err := c.Attention(ctx, a)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the error is %v", err)
	}
	equal(t, cancelled(t, c), 1)
	a.Out.Data() // the daemon has let go of it
	check(t, a.Q.buffer.Free())

	ctx, cancel = context.WithCancel(background)
	cancel()
	if err := c.Attention(ctx, long(t, c)); !errors.Is(err, context.Canceled) {
		t.Fatalf("the error is %v", err)
	}
}

func TestTensorsInFlight(t *testing.T) {
	c := private(t)
	a := long(t, c)
	stream := must(c.Stream(0))(t)
	a.Stream = stream
	r := must(c.Submit(a))(t)
	if _, ended := r.Times(); ended || r.Ended() {
		t.Fatal("it takes seconds")
	}
	says(t, a.Q.buffer.Free(), syscall.EBUSY, "requests in flight use the buffer")
	says(t, stream.Free(), syscall.EBUSY, " ")
	panics(t, "request in flight writes the tensor", func() { a.Out.Data() })
	a.Q.Data()
	if asked := must(r.Cancel())(t); !asked {
		t.Fatal("it has not ended")
	}
	says(t, r.Wait(background), syscall.ECANCELED, "cancel")
	if asked := must(r.Cancel())(t); asked {
		t.Fatal("it has ended")
	}
	a.Out.Data()
	check(t, stream.Free())
	check(t, a.Q.buffer.Free())
	check(t, a.Q.buffer.Free())
	panics(t, "buffer was freed", func() { a.Q.Data() })
	a.Stream = nil
	_, err := c.Submit(a)
	says(t, err, syscall.EINVAL, "buffer was freed")
}

func panics(t *testing.T, part string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if said := fmt.Sprint(recover()); !strings.Contains(said, part) {
			t.Fatalf("it says '%s'; expected a panic with '%s'", said, part)
		}
	}()
	f()
}

func TestGoroutines(t *testing.T) {
	c := private(t)
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		a, name := tensors(t, c, 1, 3, 2, 16), fmt.Sprintf("nobody's %d", i)
		all.Add(1)
		go func() {
			defer all.Done()
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			for j := 0; j < 100; j++ {
				if err := c.Attention(ctx, a); err != nil {
					t.Error(err)
					return
				}
			}
			// Each call has its own sentence, wherever the goroutine runs.
			_, err := c.FindCache(name)
			if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), name) {
				t.Error(err)
			}
		}()
	}
	all.Wait()
}

func TestMoreThanMayBeInFlight(t *testing.T) {
	c := private(t)
	most := int(must(c.Info())(t).MaxRequests)
	a := long(t, c)
	first := must(c.Submit(a))(t)
	small := tensors(t, c, 1, 1, 1, 8)
	var err error
	var requests []*Request
	for i := 0; i <= most && err == nil; i++ {
		var r *Request
		if r, err = c.Submit(small); err == nil {
			requests = append(requests, r)
		}
	}
	says(t, err, syscall.EAGAIN, " ")
	must(first.Cancel())(t)
	check(t, c.Attention(background, small)) // waits for room
	for _, r := range requests {
		check(t, r.Wait(background))
	}
	says(t, first.Wait(background), syscall.ECANCELED, " ")
}

func TestClose(t *testing.T) {
	c := private(t)
	socket := c.SocketPath()
	a := long(t, c)
	ended := make(chan error)
	go func() { ended <- c.Attention(background, a) }()
	eventually(t, "the request is in flight", func() bool { return a.Out.writers.Load() > 0 })
	time.Sleep(20 * time.Millisecond)
	check(t, c.Close())
	if err := <-ended; !errors.Is(err, syscall.ECANCELED) && !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("the error is %v", err)
	}
	check(t, c.Close())
	says(t, c.Ping(), syscall.EINVAL, "closed")
	_, err := c.Buffer(64)
	says(t, err, syscall.EINVAL, "closed")
	panics(t, "client was closed", func() { a.Q.Data() })
	equal(t, c.SocketPath(), "")
	equal(t, c.Connected(), false)
	eventually(t, "the daemon ends with its last client", func() bool {
		c, err := Connect(&Options{Socket: socket})
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

func TestWrongUse(t *testing.T) {
	c, another := private(t), private(t)
	submit := func(change func(a *Attention[float32])) error {
		a := tensors(t, c, 1, 4, 2, 16)
		change(a)
		_, err := c.Submit(a)
		if err == nil {
			t.Fatal("it is accepted")
		}
		// Nothing is held.
		if a.Out != nil && a.Out.buffer.client == c {
			a.Out.Data()
			check(t, a.Out.buffer.Free())
		}
		return err
	}
	for part, change := range map[string]func(a *Attention[float32]){
		"AlibiSlopes has 1":      func(a *Attention[float32]) { a.AlibiSlopes = []float32{1} },
		"Sinks has 3":            func(a *Attention[float32]) { a.Sinks = make([]float32, 3) },
		"LengthsQ has 2":         func(a *Attention[float32]) { a.LengthsQ, a.LengthsK = []uint32{0, 4}, []uint32{0} },
		"LengthsQ has 1":         func(a *Attention[float32]) { a.LengthsQ, a.LengthsK = []uint32{0}, []uint32{0} },
		"tensor is of another":   func(a *Attention[float32]) { a.K = tensors(t, another, 1, 4, 2, 16).K },
		"stream is of another":   func(a *Attention[float32]) { a.Stream = must(another.Stream(0))(t) },
		"k":                      func(a *Attention[float32]) { a.K = nil },
		"Sinks has 2 numbers; e": func(a *Attention[float32]) { a.Q, a.Sinks = nil, make([]float32, 2) },
	} {
		says(t, submit(change), syscall.EINVAL, part)
	}

	_, err := c.Buffer(0)
	says(t, err, syscall.EINVAL, "0 bytes")
	b := must(c.Buffer(256))(t)
	must(NewTensor[BF16](b, 64))(t)
	_, err = NewTensor[float32](b, 33)
	says(t, err, syscall.EINVAL, "128 bytes")
	_, err = NewTensor[float32](b, 1<<40, 1<<40)
	says(t, err, syscall.EINVAL, "more elements")
	_, err = NewTensor[float32](b, -1)
	says(t, err, syscall.EINVAL, "shape[0] is -1")
	_, err = NewTensor[float32](b, 1, 1, 1, 1, 1)
	says(t, err, syscall.EINVAL, "5 dimensions")
	_, err = c.FindCache("a\x00b")
	says(t, err, syscall.EINVAL, "zero byte")
	_, err = Connect(&Options{Socket: "/nowhere/fad.sock"})
	says(t, err, syscall.ENOENT, "/nowhere/fad.sock")
}

func TestReconnect(t *testing.T) {
	daemon := startSupervised(t)
	c := daemon.connect(t)
	a := tensors(t, c, 1, 4, 2, 16)
	check(t, c.Attention(background, a))
	expected := append([]float32(nil), a.Out.Data()...)

	inFlight := must(c.Submit(long(t, c)))(t)
	daemon.kill(t)
	err := inFlight.Wait(background)
	if !IsLost(err) {
		t.Fatalf("the error is %v", err)
	}
	equal(t, c.Connected(), false)
	check(t, c.Attention(background, a)) // reconnects; buffers have their contents
	for i, x := range a.Out.Data() {
		equal(t, x, expected[i])
	}
	equal(t, must(c.Info())(t).Reconnects, 1)
}
