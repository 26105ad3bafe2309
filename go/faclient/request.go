package faclient

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"time"
)

// Request is a request in flight. Its outputs must not be read before Wait has returned, nor its inputs changed.
type Request struct {
	client   *Client
	ticket   C.struct_fa_ticket
	operands operands
	once     sync.Once
}

// submit sends what send sends, with these operands.
func (c *Client) submit(o operands, send func(client C.uint64_t, ticket *C.struct_fa_ticket,
	e *C.struct_shim_error) C.int) (*Request, error) {
	r := &Request{client: c, operands: o}
	err := o.err
	if err == nil {
		err = c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
			result := send(client, &r.ticket, e)
			if result >= 0 {
				c.lock.Lock()
				c.requests[r] = struct{}{}
				c.lock.Unlock()
			}
			return result
		})
	}
	if err != nil {
		o.release()
		return nil, err
	}
	return r, nil
}

// run submits a request and waits for its end. With as many in flight as there may be it tries again.
func run(ctx context.Context, submit func() (*Request, error)) error {
	for {
		r, err := submit()
		if err == nil {
			return r.Wait(ctx)
		}
		if !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// Wait waits for the request's end and returns its result; its outputs may be read then. Any number of goroutines
// may call it, any number of times.
//
// If the context ends first, the request is cancelled. Wait still waits until the daemon has let go of the tensors,
// and then returns the context's error, unless the request has succeeded meanwhile.
func (r *Request) Wait(ctx context.Context) error {
	if ctx.Done() != nil {
		ended, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			select {
			case <-ctx.Done():
				_, _ = r.Cancel() // it may have ended
			case <-ended:
			}
		}()
		defer func() { <-stopped }()
		defer close(ended)
	}
	err := r.wait(math.MaxUint64, nil)
	if errors.Is(err, syscall.ECANCELED) && ctx.Err() != nil {
		return fmt.Errorf("%w: %v", ctx.Err(), err)
	}
	return err
}

// Ended says whether the request has ended: Wait returns at once then.
func (r *Request) Ended() bool { return !errors.Is(r.wait(0, nil), syscall.EAGAIN) }

// Cancel asks the daemon to end the request early, with ECANCELED. False: it had already ended.
func (r *Request) Cancel() (bool, error) {
	err := r.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_cancel(client, &r.ticket, e)
	})
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Times are when a request was queued, started and finished, by CLOCK_MONOTONIC; 0: that point was never reached.
type Times struct{ Queued, Started, Finished time.Duration }

// Times returns the times of a request that has ended; false: it has not.
func (r *Request) Times() (Times, bool) {
	var raw C.struct_fa_completion
	err := r.wait(0, &raw)
	if errors.Is(err, syscall.EAGAIN) || raw.queued_ns == 0 {
		return Times{}, false
	}
	return Times{time.Duration(raw.queued_ns), time.Duration(raw.started_ns),
		time.Duration(raw.finished_ns)}, true
}

// wait returns the request's result; EAGAIN: it goes on.
func (r *Request) wait(timeout uint64, completion *C.struct_fa_completion) error {
	err := r.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		result := C.shim_wait(client, &r.ticket, C.uint64_t(timeout), completion, e)
		for result == -C.int(syscall.EAGAIN) && timeout == math.MaxUint64 {
			result = C.shim_wait(client, &r.ticket, C.uint64_t(timeout), completion, e)
		}
		return result
	})
	if !errors.Is(err, syscall.EAGAIN) {
		r.once.Do(func() {
			r.operands.release()
			r.client.lock.Lock()
			delete(r.client.requests, r)
			r.client.lock.Unlock()
		})
	}
	return err
}
