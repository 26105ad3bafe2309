package faclient

// #include "shim.h"
import "C"

import (
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// alignment is that of tensors in a buffer, in bytes.
const alignment = 64

// Buffer is zeroed memory that this process and the daemon see. [NewTensor] takes tensors out of it.
//
// Each buffer holds a descriptor in both processes: put many small tensors into one. Free ends it; the slices of
// its tensors must not be used afterwards.
type Buffer struct {
	client *Client
	bytes  int

	lock   sync.Mutex
	handle C.uint64_t     // 0: freed
	data   unsafe.Pointer // of C
	used   int
	users  int // tensors of requests in flight
}

// Buffer makes a buffer of this many bytes.
func (c *Client) Buffer(bytes int) (*Buffer, error) {
	if bytes <= 0 || bytes > math.MaxInt-alignment {
		return nil, invalid("a buffer has %d bytes; expected at least 1", bytes)
	}
	bytes = (bytes + alignment - 1) / alignment * alignment
	handle, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer c.exit()
	b := &Buffer{client: c, bytes: bytes}
	var e C.struct_shim_error
	r := C.shim_buffer_new(handle, C.uint64_t(bytes), &b.handle, &b.data, &e)
	if err := failed(r, &e); err != nil {
		return nil, err
	}
	return b, nil
}

// Free gives the memory back. EBUSY: requests in flight use it.
func (b *Buffer) Free() error {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.users > 0 {
		return &Error{syscall.EBUSY, "requests in flight use the buffer"}
	}
	if b.handle == 0 {
		return nil
	}
	handle := b.handle
	b.handle, b.data = 0, nil
	if _, err := b.client.enter(); err != nil {
		return nil // it ended with the client
	}
	defer b.client.exit()
	C.shim_buffer_free(handle)
	return nil
}

// Left returns the bytes that no tensor has.
func (b *Buffer) Left() int {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.bytes - b.used
}

// take reserves the next bytes. They do not come back to the buffer.
func (b *Buffer) take(bytes int) (int, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if bytes > b.bytes-b.used {
		return 0, invalid("a tensor of %d bytes does not fit into the %d bytes that are left of the buffer",
			bytes, b.bytes-b.used)
	}
	offset := b.used
	b.used += (bytes + alignment - 1) / alignment * alignment
	return offset, nil
}

// hold keeps the buffer for a request of a client.
func (b *Buffer) hold(c *Client) (C.uint64_t, error) {
	if b.client != c {
		return 0, invalid("a tensor is of another client")
	}
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.handle == 0 {
		return 0, invalid("a tensor's buffer was freed")
	}
	b.users++
	return b.handle, nil
}

func (b *Buffer) release() {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.users--
}

// view is a tensor without the type of its elements.
type view struct {
	buffer  *Buffer
	offset  int
	len     int
	dtype   Dtype
	shape   []int
	writers atomic.Int32 // requests in flight that write it
}

// Tensor is a dense tensor in memory that the daemon sees.
type Tensor[T Stored] struct {
	view
}

// NewTensor takes the next bytes of a buffer as a tensor of zeros, outermost dimension first.
func NewTensor[T Stored](b *Buffer, shape ...int) (*Tensor[T], error) {
	var element T
	size := int(unsafe.Sizeof(element))
	if len(shape) > 4 {
		return nil, invalid("shape has %d dimensions; at most 4 are possible", len(shape))
	}
	n := 1
	for i, size := range shape {
		if size < 0 {
			return nil, invalid("shape[%d] is %d; expected at least 0", i, size)
		}
		if size > 0 && n > math.MaxInt/8/size {
			return nil, invalid("the shape has more elements than memory can have")
		}
		n *= size
	}
	offset, err := b.take(n * size)
	if err != nil {
		return nil, err
	}
	return &Tensor[T]{view{buffer: b, offset: offset, len: n, dtype: dtypeOf[T](),
		shape: append([]int(nil), shape...)}}, nil
}

// Shape returns its sizes, outermost dimension first.
func (t *Tensor[T]) Shape() []int { return append([]int(nil), t.shape...) }

// Len returns the number of elements.
func (t *Tensor[T]) Len() int { return t.len }

// Data returns the elements, in the daemon's memory: not a copy. The slice must not be used while a request
// writes it, nor after Buffer.Free and Client.Close; inputs must not be changed while a request reads them.
// Panics if a request in flight writes the tensor, or if its memory is gone.
func (t *Tensor[T]) Data() []T {
	if t.writers.Load() > 0 {
		panic("faclient: a request in flight writes the tensor: wait for it")
	}
	t.buffer.lock.Lock()
	defer t.buffer.lock.Unlock()
	if t.buffer.handle == 0 {
		panic("faclient: the tensor's buffer was freed")
	}
	if t.buffer.client.isClosed() {
		panic("faclient: the tensor's client was closed")
	}
	return unsafe.Slice((*T)(unsafe.Add(t.buffer.data, t.offset)), t.len)
}

// raw returns what the shim takes; holds the buffer for the operands.
func (v *view) raw(o *operands, isWritten bool) C.struct_shim_tensor {
	raw := C.struct_shim_tensor{offset: C.uint64_t(v.offset), dtype: C.uint32_t(v.dtype),
		rank: C.uint32_t(len(v.shape))}
	for i, n := range v.shape {
		raw.shape[i] = C.int64_t(n)
	}
	raw.buffer = o.add(v, isWritten)
	return raw
}

// operands are the tensors of a request, held until its end.
type operands struct {
	client  *Client
	all     []*view
	written []*view
	err     error // the first
}

func (o *operands) add(v *view, isWritten bool) C.uint64_t {
	handle, err := v.buffer.hold(o.client)
	if err != nil {
		if o.err == nil {
			o.err = err
		}
		return 0
	}
	o.all = append(o.all, v)
	if isWritten {
		v.writers.Add(1)
		o.written = append(o.written, v)
	}
	return handle
}

func (o *operands) release() {
	for _, v := range o.written {
		v.writers.Add(-1)
	}
	for _, v := range o.all {
		v.buffer.release()
	}
	o.all, o.written = nil, nil
}

// raw returns an optional tensor; none has no buffer.
func raw[T Stored](t *Tensor[T], o *operands, isWritten bool) C.struct_shim_tensor {
	if t == nil {
		return C.struct_shim_tensor{}
	}
	return t.view.raw(o, isWritten)
}

// Pointers to the first element, for the time of a call; nil for none.

func charPointer(bytes []byte) *C.char { return (*C.char)(unsafe.Pointer(&bytes[0])) }

func floatPointer(list []float32) *C.float {
	if len(list) == 0 {
		return nil
	}
	return (*C.float)(unsafe.Pointer(&list[0]))
}

func uintPointer(list []uint32) *C.uint32_t {
	if len(list) == 0 {
		return nil
	}
	return (*C.uint32_t)(unsafe.Pointer(&list[0]))
}
