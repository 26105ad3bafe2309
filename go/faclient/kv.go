package faclient

// #include "shim.h"
import "C"

import (
	"math"
	"time"
	"unsafe"
)

// Mode says whom an object with a name admits besides the same user in the same cgroup, who may do everything.
// Modes are or'ed together. User: the same user in any cgroup; All: all who may connect.
type Mode uint32

// The modes.
const (
	ModeReadUser   Mode = C.FA_MODE_READ_UID
	ModeReadAll    Mode = C.FA_MODE_READ_ALL
	ModeAppendUser Mode = C.FA_MODE_APPEND_UID
	ModeAppendAll  Mode = C.FA_MODE_APPEND_ALL
	ModeForkUser   Mode = C.FA_MODE_FORK_UID
	ModeForkAll    Mode = C.FA_MODE_FORK_ALL
)

// Store says how a cache keeps its elements.
type Store uint32

// The ways to keep elements: in the cache's dtype, or as codes of one byte.
const (
	StorePlain Store = C.FA_STORE_PLAIN
	StoreE4M3  Store = C.FA_STORE_E4M3
	StoreInt8  Store = C.FA_STORE_INT8
)

// CacheOptions are the shape of a cache: that of one model's layers.
type CacheOptions struct {
	Dtype      Dtype
	Layers     int
	KVHeads    int
	HeadDim    int    // a multiple of 8 up to 576
	HeadDimV   int    // a multiple of 8 up to 512; 0: HeadDim
	PageTokens int    // a power of two from 16 to 256; 0: 64
	MaxPages   uint64 // of all its sequences; 0: no limit but the pool's
	VInK       bool   // values are the front of keys and not kept
	Store      Store
	// With codes: the scales, [layers][kv_heads]; nil: each token has its own. With VInK only KScales.
	KScales, VScales []float32
	// The bytes of each state of linear layers, which checkpoints hold (Item.Checkpoint); nil: none. Checkpoints after
	// multiples of CheckpointTokens are kept; 0: only the newest of each sequence is.
	States           []uint32
	CheckpointTokens int

	Name string        // at most 63 bytes; with a name it outlives its client, and others find it
	Mode Mode          // only with a name
	TTL  time.Duration // removes it after this time without use and sequences; 0: never; only with a name
}

// Cache is pages of keys and values of one model's layers, in the daemon. One without a name ends with the client at
// the latest.
type Cache struct {
	client *Client
	number C.uint64_t
}

// CreateCache creates a cache. EEXIST: this user has one with that name.
func (c *Client) CreateCache(options CacheOptions) (*Cache, error) {
	name, err := cString(options.Name, "Name")
	if err != nil {
		return nil, err
	}
	raw := C.struct_shim_cache{mode: C.uint32_t(options.Mode), dtype: C.uint32_t(options.Dtype),
		layers: size(options.Layers), kv_heads: size(options.KVHeads), head_dim: size(options.HeadDim),
		head_dim_v: size(options.HeadDimV), page_tokens: size(options.PageTokens),
		store: C.uint32_t(options.Store), max_pages: C.uint64_t(options.MaxPages),
		ttl_ns: nanoseconds(options.TTL), n_states: size(len(options.States)),
		checkpoint_tokens: size(options.CheckpointTokens)}
	if options.VInK {
		raw.flags |= C.FA_CACHE_V_IN_K
	}
	if options.KScales != nil || options.VScales != nil {
		// The library reads as many as the shape says.
		n := int(raw.layers) * int(raw.kv_heads)
		nV := n
		if options.VInK {
			nV = 0
		}
		if len(options.KScales) != n || len(options.VScales) != nV {
			return nil, invalid("KScales has %d numbers and VScales %d; expected %d and %d, one for each head of "+
				"each layer", len(options.KScales), len(options.VScales), n, nV)
		}
	} else if options.Store != StorePlain {
		raw.flags |= C.FA_CACHE_TOKEN_SCALES
	}
	cache := &Cache{client: c}
	err = c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_cache_create(client, &raw, name, floatPointer(options.KScales),
			floatPointer(options.VScales), uintPointer(options.States), &cache.number, e)
	})
	if err != nil {
		return nil, err
	}
	return cache, nil
}

// size returns a number for the library, which refuses one that is too large.
func size(n int) C.uint32_t {
	if n < 0 || n > math.MaxUint32 {
		return math.MaxUint32
	}
	return C.uint32_t(n)
}

// FindCache finds a cache of this user by its name. ENOENT: there is none.
func (c *Client) FindCache(name string) (*Cache, error) { return c.findCache(math.MaxUint32, name) }

// FindCacheOf finds another user's cache, which that user can change and remove.
func (c *Client) FindCacheOf(uid uint32, name string) (*Cache, error) { return c.findCache(uid, name) }

func (c *Client) findCache(uid uint32, name string) (*Cache, error) {
	text, err := cString(name, "name")
	if err != nil {
		return nil, err
	}
	cache := &Cache{client: c}
	err = c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_cache_find(client, C.uint32_t(uid), text, &cache.number, e)
	})
	if err != nil {
		return nil, err
	}
	return cache, nil
}

// CacheInfo is what a cache is and has.
type CacheInfo struct {
	Dtype                                                     Dtype
	Layers, KVHeads, HeadDim, HeadDimV, PageTokens, Sequences int
	PageBytes                                                 uint64 // of one page, all layers
	MaxPages                                                  uint64 // 0: no limit but the pool's
	UsedPages                                                 uint64 // in sequences and steps
	IdlePages                                                 uint64 // published, and in no sequence
	UID                                                       uint32 // of the user whose cache it is
}

// Info returns its shape, and its pages now.
func (c *Cache) Info() (CacheInfo, error) {
	var raw C.struct_fa_cache_info
	err := c.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_cache_info(client, c.number, &raw, e)
	})
	if err != nil {
		return CacheInfo{}, err
	}
	return CacheInfo{
		Dtype: Dtype(raw.dtype), Layers: int(raw.layers), KVHeads: int(raw.kv_heads),
		HeadDim: int(raw.head_dim), HeadDimV: int(raw.head_dim_v), PageTokens: int(raw.page_tokens),
		Sequences: int(raw.sequences), PageBytes: uint64(raw.page_bytes), MaxPages: uint64(raw.max_pages),
		UsedPages: uint64(raw.used_pages), IdlePages: uint64(raw.idle_pages), UID: uint32(raw.uid),
	}, nil
}

// Remove removes the cache with all its sequences, for all processes.
func (c *Cache) Remove() error {
	return c.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_cache_remove(client, c.number, e)
	})
}

// Sequence makes an empty sequence.
func (c *Cache) Sequence() (*Sequence, error) {
	s := &Sequence{client: c.client}
	err := c.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_create(client, c.number, &s.number, e)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Attach makes a sequence of the longest prefix of these tokens that any process published, in whole pages. It
// returns how many tokens that are, which may be 0.
func (c *Cache) Attach(prefix Prefix) (*Sequence, uint64, error) {
	s, err := c.Sequence()
	if err != nil {
		return nil, 0, err
	}
	tokens, err := s.Attach(prefix)
	if err != nil {
		_ = s.Remove() // the error that counts is the other
		return nil, 0, err
	}
	return s, tokens, nil
}

// Find returns how many leading tokens Attach would find now. Changes nothing.
func (c *Cache) Find(prefix Prefix) (uint64, error) {
	return prefix.call(c.client, C.SHIM_FIND, c.number)
}

// Prefix is the first tokens of a sequence, by which its pages are found.
type Prefix struct {
	Tokens []uint32
	Extra  []byte // what else keys and values depend on, such as an adapter or an image; at most 256 bytes
	Shared bool   // also with every tenant that sets it, too
}

func (p Prefix) call(c *Client, call C.enum_shim_prefix_call, of C.uint64_t) (uint64, error) {
	var flags C.uint32_t
	if p.Shared {
		flags = C.FA_PREFIX_SHARED
	}
	var extra unsafe.Pointer
	if len(p.Extra) > 0 {
		extra = unsafe.Pointer(&p.Extra[0])
	}
	var found C.uint64_t
	err := c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_prefix(client, call, of, flags, uintPointer(p.Tokens), C.uint64_t(len(p.Tokens)),
			extra, C.uint64_t(len(p.Extra)), &found, e)
	})
	return uint64(found), err
}

// Sequence is a sequence of tokens in a cache. One without a name ends with the client at the latest; one with a name
// stays until Remove.
type Sequence struct {
	client *Client
	number C.uint64_t
}

// FindSequence finds a sequence of this user by its name. ENOENT: there is none.
func (c *Client) FindSequence(name string) (*Sequence, error) {
	return c.findSequence(math.MaxUint32, name)
}

// FindSequenceOf finds another user's sequence, which that user can change and remove.
func (c *Client) FindSequenceOf(uid uint32, name string) (*Sequence, error) {
	return c.findSequence(uid, name)
}

func (c *Client) findSequence(uid uint32, name string) (*Sequence, error) {
	text, err := cString(name, "name")
	if err != nil {
		return nil, err
	}
	s := &Sequence{client: c}
	err = c.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_find(client, C.uint32_t(uid), text, &s.number, e)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// SequenceInfo is what a sequence has.
type SequenceInfo struct {
	Length  uint64 // committed tokens, which outlive the daemon
	Planned uint64 // length with the tokens of steps in progress
	First   uint64 // tokens before it were dropped
	Step    uint64 // Step.Number of the last committed step; 0: none
	UID     uint32 // of the user whose sequence it is

	Checkpoint  uint64 // tokens before the newest checkpoint; 0: there is none
	Checkpoints uint32
}

// Info returns its length, and more.
func (s *Sequence) Info() (SequenceInfo, error) {
	var raw C.struct_fa_sequence_info
	err := s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_info(client, s.number, &raw, e)
	})
	return SequenceInfo{uint64(raw.length), uint64(raw.planned), uint64(raw.first), uint64(raw.step),
		uint32(raw.uid), uint64(raw.checkpoint), uint32(raw.checkpoints)}, err
}

// Length returns the number of committed tokens.
func (s *Sequence) Length() (uint64, error) {
	info, err := s.Info()
	return info.Length, err
}

// All is as many tokens as a sequence has.
const All = math.MaxUint64

// Fork makes a sequence of the first tokens, or of All. Nothing is copied, and changes of one do not affect the other.
func (s *Sequence) Fork(tokens uint64) (*Sequence, error) {
	fork := &Sequence{client: s.client}
	err := s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_fork(client, s.number, C.uint64_t(tokens), &fork.number, e)
	})
	if err != nil {
		return nil, err
	}
	return fork, nil
}

// Truncate removes all tokens from this number on. EBUSY: steps append to it.
func (s *Sequence) Truncate(tokens uint64) error {
	_, err := s.TruncateTo(tokens)
	return err
}

// TruncateTo does what Truncate does, and returns how many tokens are left: fewer in a cache with states, up to the last
// checkpoint.
func (s *Sequence) TruncateTo(tokens uint64) (uint64, error) {
	var left C.uint64_t
	err := s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_truncate(client, s.number, C.uint64_t(tokens), &left, e)
	})
	return uint64(left), err
}

// DropBefore drops leading tokens, in whole pages. It returns the first token left.
func (s *Sequence) DropBefore(first uint64) (uint64, error) {
	var left C.uint64_t
	err := s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_drop_before(client, s.number, C.uint64_t(first), &left, e)
	})
	return uint64(left), err
}

// Publish says which tokens the sequence holds, so that others find its full pages. It returns how many pages are
// new. Nothing is verified: wrong tokens corrupt other readers' results.
func (s *Sequence) Publish(prefix Prefix) (uint64, error) {
	return prefix.call(s.client, C.SHIM_PUBLISH, s.number)
}

// Attach fills an empty sequence with the longest published prefix of these tokens. It returns its length.
func (s *Sequence) Attach(prefix Prefix) (uint64, error) {
	return prefix.call(s.client, C.SHIM_ATTACH, s.number)
}

// SetName gives the sequence a name of at most 63 bytes, by which others find it; it then outlives this process. Its
// cache must have a name, too. With a ttl it is removed after that time without use. Called again with the same
// name, this changes mode and ttl.
func (s *Sequence) SetName(name string, mode Mode, ttl time.Duration) error {
	text, err := cString(name, "name")
	if err != nil {
		return err
	}
	return s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_set_name(client, s.number, text, C.uint32_t(mode), nanoseconds(ttl), e)
	})
}

// Remove removes the sequence, for all processes. Forks keep what they share with it.
func (s *Sequence) Remove() error {
	return s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		return C.shim_sequence_remove(client, s.number, e)
	})
}

// Rows are keys and values of a layer, [tokens, kv_heads, head_dim]; one of the two may be nil.
type Rows[T Element] struct{ K, V *Tensor[T] }

// AnyRows is Rows of any type of elements.
type AnyRows interface {
	raw(o *operands, isWritten bool) (k, v C.struct_shim_tensor)
}

func (r Rows[T]) raw(o *operands, isWritten bool) (k, v C.struct_shim_tensor) {
	return raw(r.K, o, isWritten), raw(r.V, o, isWritten)
}

// Read copies committed keys and values of a layer, from this token on.
func (s *Sequence) Read(layer int, first uint64, to AnyRows) error {
	return s.copy(layer, first, to, true)
}

func (s *Sequence) copy(layer int, first uint64, rows AnyRows, isWritten bool) error {
	o := operands{client: s.client}
	defer o.release()
	raw := C.struct_shim_copy{sequence: s.number, first: C.uint64_t(first), layer: size(layer)}
	raw.k, raw.v = rows.raw(&o, isWritten)
	if o.err != nil {
		return o.err
	}
	return s.client.call(func(client C.uint64_t, e *C.struct_shim_error) C.int {
		if isWritten {
			return C.shim_sequence_read(client, &raw, e)
		}
		return C.shim_sequence_write(client, &raw, e)
	})
}
