// Package faclient asks fad for attention and keeps KV caches in it: a daemon that several processes share.
//
// A [Client] is a connection, which any number of goroutines may use. [Tensor] values lie in memory that the
// daemon sees. A context that ends cancels the request that was given it. [Cache], [Sequence] and [Step] are the KV
// cache; other processes find what has a name, and published tokens by their [Prefix].
//
// Every error of the library is an [Error] with an errno and a sentence.
//
// # When the daemon dies
//
// Requests and steps in flight fail with ECONNRESET. The next call reconnects to the daemon's successor; buffers
// keep their contents. Caches and sequences keep their committed tokens, if the daemon has a keeper
// (fad.service, fad --supervise): repeat the step.
//
// # What it lacks
//
// Memory of GPUs, imported memory, strided tensors and timelines.
package faclient

// #cgo pkg-config: libfaclient
// #cgo CFLAGS: -std=gnu11
// #include "shim.h"
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Options say which daemon to connect to. The zero value means the one that runs: that of FAD_SOCKET, the
// user's, or the system's.
type Options struct {
	Spawn   bool   // start a daemon if none answers and no socket is named
	Private bool   // always start one; it ends with its last client
	NoRing  bool   // send requests by the socket alone
	Socket  string // the path of the daemon's socket
	Name    string // shown by factl status, at most 64 bytes; "": the program's
	Daemon  string // the program to start; "": FAD_DAEMON, else the installed one
	Config  string // the configuration of a daemon that is started

	// Time limits; 0: the library's defaults. A Reconnect below 0: only Client.Reconnect reconnects.
	Connect, Reconnect, Reply time.Duration
	Spin                      time.Duration // how long a call spins before it sleeps
}

// Client is a connection to a daemon. Any number of goroutines may use it.
type Client struct {
	calls    sync.RWMutex // held by calls of the library
	closed   atomic.Bool
	handle   C.uint64_t
	lock     sync.Mutex
	requests map[*Request]struct{} // in flight
}

// Connect connects; nil options are zero ones. Close ends the connection.
func Connect(options *Options) (*Client, error) {
	if options == nil {
		options = &Options{}
	}
	var texts [4]*C.char
	for i, text := range []struct{ value, name string }{{options.Socket, "Socket"},
		{options.Name, "Name"}, {options.Daemon, "Daemon"}, {options.Config, "Config"}} {
		var err error
		if texts[i], err = cString(text.value, text.name); err != nil {
			return nil, err
		}
	}
	raw := C.struct_shim_options{connect_ns: nanoseconds(options.Connect),
		reconnect_ns: nanoseconds(options.Reconnect), reply_ns: nanoseconds(options.Reply),
		spin_ns: nanoseconds(options.Spin)}
	for flag, isSet := range map[C.uint32_t]bool{C.FA_CONNECT_SPAWN: options.Spawn,
		C.FA_CONNECT_PRIVATE: options.Private, C.FA_CONNECT_NO_RING: options.NoRing} {
		if isSet {
			raw.flags |= flag
		}
	}
	c := &Client{requests: make(map[*Request]struct{})}
	var e C.struct_shim_error
	r := C.shim_connect(&raw, texts[0], texts[1], texts[2], texts[3], &c.handle, &e)
	if err := failed(r, &e); err != nil {
		return nil, err
	}
	return c, nil
}

// nanoseconds returns a time as the library takes it: 0 is the default, and a time below 0 means no
// limit.
func nanoseconds(d time.Duration) C.uint64_t {
	if d < 0 {
		return C.UINT64_MAX
	}
	return C.uint64_t(d)
}

// Close disconnects. It cancels the requests in flight and waits for the calls that goroutines are in. Afterwards
// calls fail, and slices of tensors must not be used. May be called again.
func (c *Client) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.lock.Lock()
	for r := range c.requests {
		var e C.struct_shim_error
		C.shim_cancel(c.handle, &r.ticket, &e)
	}
	c.lock.Unlock()
	c.calls.Lock()
	defer c.calls.Unlock()
	C.shim_disconnect(c.handle)
	return nil
}

func (c *Client) isClosed() bool { return c.closed.Load() }

// enter returns the handle, which lives until exit.
func (c *Client) enter() (C.uint64_t, error) {
	c.calls.RLock()
	if c.isClosed() {
		c.calls.RUnlock()
		return 0, invalid("the client is closed")
	}
	return c.handle, nil
}

func (c *Client) exit() { c.calls.RUnlock() }

// call runs a call of the library.
func (c *Client) call(f func(client C.uint64_t, e *C.struct_shim_error) C.int) error {
	handle, err := c.enter()
	if err != nil {
		return err
	}
	defer c.exit()
	var e C.struct_shim_error
	return failed(f(handle, &e), &e)
}

// Info is what the daemon said at the last connect.
type Info struct {
	DaemonVersion  string
	Backend        string // "cpu" or "cuda"
	DeviceName     string
	Pid            int    // of the daemon, in its own namespace; 0: unknown
	Generation     uint64 // changes when the daemon is restarted
	Session        uint64
	Reconnects     uint64 // of this client
	Resumed        uint64 // of these, without loss of a cache or sequence
	MaxBuffers     uint64
	MaxBufferBytes uint64
	MaxStreams     uint64
	MaxRequests    uint64 // in flight, of one client
	Spawned        bool   // this client started the daemon
}

// Info returns what the daemon said when the client connected to it.
func (c *Client) Info() (Info, error) {
	var raw C.struct_fa_info
	err := c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_info(client, &raw, e)
	})
	if err != nil {
		return Info{}, err
	}
	return Info{
		DaemonVersion:  C.GoString(&raw.daemon_version[0]),
		Backend:        C.GoString(&raw.backend[0]),
		DeviceName:     C.GoString(&raw.device_name[0]),
		Pid:            int(raw.pid),
		Generation:     uint64(raw.generation),
		Session:        uint64(raw.session),
		Reconnects:     uint64(raw.reconnects),
		Resumed:        uint64(raw.resumed),
		MaxBuffers:     uint64(raw.max_buffers),
		MaxBufferBytes: uint64(raw.max_buffer_bytes),
		MaxStreams:     uint64(raw.max_streams),
		MaxRequests:    uint64(raw.max_requests),
		Spawned:        raw.origin == C.FA_DAEMON_SPAWNED,
	}, nil
}

// Ping is one empty round trip.
func (c *Client) Ping() error {
	return c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_ping(client, e)
	})
}

// Reconnect reconnects now, if the connection is lost.
func (c *Client) Reconnect() error {
	return c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_reconnect(client, e)
	})
}

// Connected is false if the daemon was lost: the next call that needs it reconnects.
func (c *Client) Connected() bool {
	handle, err := c.enter()
	if err != nil {
		return false
	}
	defer c.exit()
	return C.shim_state(handle) == C.FA_CLIENT_CONNECTED
}

// Status returns the daemon's state as JSON, which faclient.h describes.
func (c *Client) Status() (string, error) {
	var text *C.char
	err := c.call(func(client C.uint64_t, e *C.struct_shim_error) (r C.int) {
		text = C.shim_status(client, &r, e)
		return r
	})
	return taken(text), err
}

// SocketPath returns the path of the daemon's socket, for other processes; "" if the client is closed.
func (c *Client) SocketPath() string {
	handle, err := c.enter()
	if err != nil {
		return ""
	}
	defer c.exit()
	return taken(C.shim_socket_path(handle))
}

// taken returns a text of C's, which it frees.
func taken(text *C.char) string {
	if text == nil {
		return ""
	}
	defer C.shim_free(text)
	return C.GoString(text)
}

// Stream is an order of requests: those of one stream run in order, those of different streams at the same time.
type Stream struct {
	client *Client
	number C.uint32_t
}

// Stream makes one. One of priority > 0 goes before others of this client.
func (c *Client) Stream(priority int) (*Stream, error) {
	s := &Stream{client: c}
	err := c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_stream_new(client, C.int(priority), &s.number, e)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Free ends it. EBUSY: requests are in flight.
func (s *Stream) Free() error {
	return s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_stream_free(client, s.number, e)
	})
}

// of returns the number for a client; no stream is the one that always exists.
func (s *Stream) of(c *Client) (C.uint32_t, error) {
	if s == nil {
		return 0, nil
	}
	if s.client != c {
		return 0, invalid("the stream is of another client")
	}
	return s.number, nil
}

// IsLost says whether an error tells that the daemon went away, and the call or request with it.
func IsLost(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Errno == syscall.ECONNRESET
}
