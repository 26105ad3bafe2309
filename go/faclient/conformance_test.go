package faclient

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
)

// The format of tests/conformance/cases.json, whose README.md describes it.

type randomTensor struct {
	Seed  uint64
	Shape []int
}

type shapedNumbers struct {
	Shape  []int
	Values []int32
}

type cacheShape struct {
	Name       string
	Layers     int
	KVHeads    int `json:"kv_heads"`
	HeadDim    int `json:"head_dim"`
	HeadDimV   int `json:"head_dim_v"`
	PageTokens int `json:"page_tokens"`
}

type operation struct {
	Op, Error, Sequence, To, Name, Step string
	Client                              int
	Cache                               *cacheShape
	Q                                   *randomTensor
	K, V                                json.RawMessage // of attention a tensor, of pages a list
	KNew                                *randomTensor   `json:"k_new"`
	VNew                                *randomTensor   `json:"v_new"`
	OutShape                            []int           `json:"out_shape"`
	LSEShape                            []int           `json:"lse_shape"`
	Out, LSE                            []*float64
	Causal                              bool
	Window                              []int
	Scale, Softcap                      float32
	AlibiSlopes                         []float32 `json:"alibi_slopes"`
	Sinks                               []float32
	CuSeqlensQ                          []uint32       `json:"cu_seqlens_q"`
	CuSeqlensK                          []uint32       `json:"cu_seqlens_k"`
	ChunkTokens                         uint64         `json:"chunk_tokens"`
	PrefixLengths                       []uint32       `json:"prefix_lengths"`
	BlockRows                           int            `json:"block_rows"`
	BlockKeys                           int            `json:"block_keys"`
	BlockOffsets                        *shapedNumbers `json:"block_offsets"`
	BlockColumns                        *shapedNumbers `json:"block_columns"`
	Mask                                *shapedNumbers
	Pattern                             []int64
	Layer                               int
	Tokens                              json.RawMessage
	Before, Expect, First               uint64
	Items                               [][2]any
	Pages                               string
	HeadsFirst                          bool `json:"heads_first"`
	Table                               json.RawMessage
	Lengths, Numbers                    []int32
	CuQ                                 []int32 `json:"cu_q"`
	Slots                               []int64
	MaxQ                                int `json:"max_q"`
	MaxK                                int `json:"max_k"`
	PageOffset                          int `json:"page_offset"`
}

type conformanceCase struct {
	Name, Dtype string
	Cache       *cacheShape
	Operations  []operation
	Wrong       bool
}

type conformanceFile struct {
	Version   int
	Tolerance map[string]float64
	Errno     map[string]syscall.Errno
	Cases     []conformanceCase
}

func element(seed, index uint64) float32 {
	z := (seed<<32 + index + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return (float32((z^z>>31)>>56) - 128) / 128
}

// running is a case that runs, with tensors of T.
type running[T Element] struct {
	t         *testing.T
	of        *conformanceCase
	clients   [2]*Client
	tolerance float64
	wrong     int
	cache     *Cache
	sequences map[string]*Sequence
	steps     map[string]*Step
	pages     map[string]*ownPages[T]
}

// ownPages are pages that the program manages, a tensor a layer.
type ownPages[T Element] struct {
	layers     Layers[T]
	headsFirst bool
}

func (r *running[T]) random(memory *Buffer, from *randomTensor) (*Tensor[T], error) {
	if from == nil {
		return nil, nil
	}
	tensor, err := NewTensor[T](memory, from.Shape...)
	if err != nil {
		return nil, err
	}
	for i := range tensor.Data() {
		tensor.Data()[i] = FromFloat32[T](element(from.Seed, uint64(i)))
	}
	return tensor, nil
}

func compare[T Element, U Element](r *running[T], found *Tensor[U], expected []*float64) {
	r.t.Helper()
	equal(r.t, found.Len(), len(expected))
	for i, x := range found.Data() {
		is, wanted := float64(ToFloat32(x)), math.Inf(-1)
		if expected[i] != nil {
			wanted = *expected[i]
		}
		if is != wanted && !(math.Abs(is-wanted) <= r.tolerance) {
			r.wrong++
			if r.wrong == 1 && !r.of.Wrong {
				r.t.Errorf("number %d is %g; expected %g", i, is, wanted)
			}
		}
	}
}

func (o *operation) scores() Scores {
	s := Scores{Causal: o.Causal, Scale: o.Scale, Softcap: o.Softcap, AlibiSlopes: o.AlibiSlopes,
		Sinks: o.Sinks, ChunkTokens: o.ChunkTokens}
	if o.Window != nil {
		s.Window = &Window{o.Window[0], o.Window[1]}
	}
	if p := o.Pattern; p != nil {
		s.Pattern = &BlockPattern{uint32(p[0]), uint32(p[1]), uint32(p[2]), int32(p[3]), uint32(p[4])}
	}
	return s
}

func (n *shapedNumbers) tensor(t *testing.T, memory *Buffer) *Tensor[int32] {
	if n == nil {
		return nil
	}
	return numbers(t, memory, n.Values, n.Shape...)
}

func (r *running[T]) attention(c *Client, o *operation) error {
	memory := must(c.Buffer(1 << 20))(r.t)
	defer memory.Free()
	a := &Attention[T]{Scores: o.scores(), LengthsQ: o.CuSeqlensQ, LengthsK: o.CuSeqlensK,
		PrefixLengths: o.PrefixLengths}
	a.Q = must(r.random(memory, o.Q))(r.t)
	var k, v randomTensor
	check(r.t, json.Unmarshal(o.K, &k))
	check(r.t, json.Unmarshal(o.V, &v))
	a.K = must(r.random(memory, &k))(r.t)
	a.V = must(r.random(memory, &v))(r.t)
	a.Out = must(NewTensor[T](memory, o.OutShape...))(r.t)
	a.Mask = o.Mask.tensor(r.t, memory)
	if o.BlockRows != 0 {
		a.Blocks = &BlockMask{Rows: o.BlockRows, Keys: o.BlockKeys,
			Offsets: o.BlockOffsets.tensor(r.t, memory), Columns: o.BlockColumns.tensor(r.t, memory)}
	}
	if o.LSE != nil {
		a.LSE = must(NewTensor[float32](memory, o.LSEShape...))(r.t)
	}
	if err := c.Attention(context.Background(), a); err != nil {
		return err
	}
	compare(r, a.Out, o.Out)
	if o.LSE != nil {
		compare(r, a.LSE, o.LSE)
	}
	return nil
}

func (r *running[T]) attend(c *Client, o *operation) error {
	memory := must(c.Buffer(1 << 20))(r.t)
	defer memory.Free()
	a := &Attend[T]{Layer: o.Layer, Scores: o.scores(), PrefixLengths: o.PrefixLengths}
	a.K = must(r.random(memory, o.KNew))(r.t)
	a.V = must(r.random(memory, o.VNew))(r.t)
	a.Q = must(r.random(memory, o.Q))(r.t)
	if o.Out != nil {
		a.Out = must(NewTensor[T](memory, o.OutShape...))(r.t)
	}
	if err := r.steps[o.Step].Attend(context.Background(), a); err != nil {
		return err
	}
	if o.Out != nil {
		compare(r, a.Out, o.Out)
	}
	return nil
}

func (r *running[T]) createPages(c *Client, o *operation) error {
	memory := must(c.Buffer(1 << 16))(r.t)
	r.t.Cleanup(func() { memory.Free() })
	own := &ownPages[T]{headsFirst: o.HeadsFirst}
	for _, side := range []struct {
		from json.RawMessage
		to   *[]*Tensor[T]
	}{{o.K, &own.layers.K}, {o.V, &own.layers.V}} {
		var list []randomTensor
		check(r.t, json.Unmarshal(side.from, &list))
		for i := range list {
			*side.to = append(*side.to, must(r.random(memory, &list[i]))(r.t))
		}
	}
	r.pages[o.Pages] = own
	return nil
}

// numbers returns a tensor of integers; of none nil.
func numbers[T int32 | int64](t *testing.T, memory *Buffer, list []T, shape ...int) *Tensor[T] {
	if list == nil {
		return nil
	}
	tensor := must(NewTensor[T](memory, shape...))(t)
	copy(tensor.Data(), list)
	return tensor
}

func (r *running[T]) pagesAttend(c *Client, o *operation) error {
	memory := must(c.Buffer(1 << 20))(r.t)
	defer memory.Free()
	own := r.pages[o.Pages]
	a := &PagesAttend[T, T]{K: own.layers.K[o.Layer], V: own.layers.V[o.Layer], HeadsFirst: own.headsFirst,
		MaxQ: o.MaxQ, MaxK: o.MaxK, Scores: o.scores()}
	var rows [][]int32
	check(r.t, json.Unmarshal(o.Table, &rows))
	var table []int32
	for _, row := range rows {
		table = append(table, row...)
	}
	a.Table = numbers(r.t, memory, table, len(rows), len(rows[0]))
	a.Lengths = numbers(r.t, memory, o.Lengths, len(o.Lengths))
	a.CuQ = numbers(r.t, memory, o.CuQ, len(o.CuQ))
	var prefixes []int32
	for _, n := range o.PrefixLengths {
		prefixes = append(prefixes, int32(n))
	}
	a.PrefixLengths = numbers(r.t, memory, prefixes, len(prefixes))
	a.Slots = numbers(r.t, memory, o.Slots, len(o.Slots))
	a.KNew = must(r.random(memory, o.KNew))(r.t)
	a.VNew = must(r.random(memory, o.VNew))(r.t)
	a.Q = must(r.random(memory, o.Q))(r.t)
	a.Out = must(NewTensor[T](memory, o.OutShape...))(r.t)
	if o.LSE != nil {
		a.LSE = must(NewTensor[float32](memory, o.LSEShape...))(r.t)
	}
	if err := c.PagesAttend(context.Background(), a); err != nil {
		return err
	}
	compare(r, a.Out, o.Out)
	if o.LSE != nil {
		compare(r, a.LSE, o.LSE)
	}
	return nil
}

func (r *running[T]) copyPages(o *operation, s *Sequence, tokens uint64) error {
	own, ctx := r.pages[o.Pages], context.Background()
	pages := PagesRange{First: o.First, Tokens: tokens, PageOffset: o.PageOffset}
	for _, number := range o.Numbers {
		pages.Pages = append(pages.Pages, uint32(number))
	}
	if o.Op == "write_pages" {
		return r.steps[o.Step].WritePages(ctx, s, pages, own.layers)
	}
	if err := s.ReadPages(ctx, pages, own.layers); err != nil {
		return err
	}
	for _, side := range []struct {
		found    []*Tensor[T]
		expected json.RawMessage
	}{{own.layers.K, o.K}, {own.layers.V, o.V}} {
		var layers [][]*float64
		check(r.t, json.Unmarshal(side.expected, &layers))
		for i, layer := range side.found {
			compare(r, layer, layers[i])
		}
	}
	return nil
}

func (r *running[T]) createCache(c *Client, shape *cacheShape) (*Cache, error) {
	return c.CreateCache(CacheOptions{Dtype: dtypeOf[T](), Layers: shape.Layers, KVHeads: shape.KVHeads,
		HeadDim: shape.HeadDim, HeadDimV: shape.HeadDimV, PageTokens: shape.PageTokens, Name: shape.Name})
}

// cacheOf returns the case's cache, as this client finds it.
func (r *running[T]) cacheOf(c *Client) (*Cache, error) {
	if name := r.of.Cache.Name; name != "" {
		return c.FindCache(name)
	}
	return r.cache, nil
}

func (r *running[T]) operate(o *operation) error {
	c, s := r.clients[o.Client], r.sequences[o.Sequence]
	var list []uint32
	var tokens uint64 = All
	if o.Tokens != nil && json.Unmarshal(o.Tokens, &list) != nil {
		check(r.t, json.Unmarshal(o.Tokens, &tokens))
	}
	counted := func(n uint64, err error) error {
		if err == nil {
			equal(r.t, n, o.Expect)
		}
		return err
	}
	kept := func(name string) func(*Sequence, error) error {
		return func(s *Sequence, err error) error {
			if err == nil {
				r.sequences[name] = s
			}
			return err
		}
	}
	switch o.Op {
	case "attention":
		return r.attention(c, o)
	case "pages":
		return r.createPages(c, o)
	case "pages_attend":
		return r.pagesAttend(c, o)
	case "read_pages", "write_pages":
		return r.copyPages(o, s, tokens)
	case "cache":
		shape := o.Cache
		if shape == nil {
			shape = r.of.Cache
		}
		_, err := r.createCache(c, shape)
		return err
	case "create":
		return kept(o.Sequence)(must(r.cacheOf(c))(r.t).Sequence())
	case "begin":
		items := make([]Item, len(o.Items))
		for i, item := range o.Items {
			items[i] = Item{Sequence: r.sequences[item[0].(string)], New: int(item[1].(float64))}
		}
		step, err := c.Step(items...)
		if err == nil {
			r.steps[o.Step] = step
		}
		return err
	case "attend":
		return r.attend(c, o)
	case "commit":
		return r.steps[o.Step].Commit(context.Background())
	case "abort":
		return r.steps[o.Step].Abort()
	case "length":
		info, err := s.Info()
		if err == nil {
			equal(r.t, info.First, o.First)
		}
		return counted(info.Length, err)
	case "fork":
		return kept(o.To)(s.Fork(tokens))
	case "truncate":
		return s.Truncate(tokens)
	case "drop":
		return counted(s.DropBefore(o.Before))
	case "remove":
		return s.Remove()
	case "name":
		return s.SetName(o.Name, 0, 0)
	case "sequence":
		return kept(o.Sequence)(c.FindSequence(o.Name))
	case "publish":
		return counted(s.Publish(Prefix{Tokens: list}))
	case "attach":
		return counted(s.Attach(Prefix{Tokens: list}))
	case "find":
		return counted(must(r.cacheOf(c))(r.t).Find(Prefix{Tokens: list}))
	}
	r.t.Fatalf("unknown operation %s", o.Op)
	return nil
}

func runCase[T Element](t *testing.T, file *conformanceFile, of *conformanceCase, clients [2]*Client) {
	r := running[T]{t: t, of: of, clients: clients, tolerance: file.Tolerance[of.Dtype],
		sequences: map[string]*Sequence{}, steps: map[string]*Step{}, pages: map[string]*ownPages[T]{}}
	if of.Cache != nil {
		r.cache = must(r.createCache(clients[0], of.Cache))(t)
		defer r.cache.Remove()
	}
	for i := range of.Operations {
		o := &of.Operations[i]
		err := r.operate(o)
		if o.Error == "" {
			if err != nil {
				t.Fatalf("%s %d: %v", o.Op, i, err)
			}
			continue
		}
		if expected, is := file.Errno[o.Error]; !is || !errors.Is(err, expected) {
			t.Fatalf("%s %d: the error is %v; expected %s", o.Op, i, err, o.Error)
		}
		if !strings.Contains(err.Error(), " ") {
			t.Fatalf("%s %d fails without a sentence: '%v'", o.Op, i, err)
		}
	}
	for _, step := range r.steps {
		step.Close()
	}
	equal(t, r.wrong > 0, of.Wrong)
}

func TestConformance(t *testing.T) {
	path := os.Getenv("FACLIENT_CONFORMANCE")
	if path == "" {
		path = "../../tests/conformance/cases.json"
	}
	var file conformanceFile
	check(t, json.Unmarshal(must(os.ReadFile(path))(t), &file))
	equal(t, file.Version, 1)
	if len(file.Cases) < 50 {
		t.Fatalf("there are %d cases", len(file.Cases))
	}
	first := private(t)
	clients := [2]*Client{first, connect(t, &Options{Socket: first.SocketPath()})}
	for i := range file.Cases {
		of := &file.Cases[i]
		t.Run(of.Name, func(t *testing.T) {
			switch of.Dtype {
			case "f32":
				runCase[float32](t, &file, of, clients)
			case "f16":
				runCase[F16](t, &file, of, clients)
			case "bf16":
				runCase[BF16](t, &file, of, clients)
			default:
				t.Fatalf("unknown dtype %s", of.Dtype)
			}
		})
	}
}
