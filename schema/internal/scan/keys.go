package scan

import "hash/maphash"

// Keys is the set of keys that one object has had so far. It holds offsets into the text. The first
// few are compared one by one; beyond that it is a hash table with a secret seed, so that no choice of
// keys makes it slow. The zero value is an empty set. Reset keeps the memory.
type Keys struct {
	n     int
	few   [8]key
	table []uint64 // hash<<32 | offset of the opening quote; 0 is a free slot
}

// A key is the offset of an opening quote and of its closing one.
type key struct {
	open, end uint32
	escaped   bool
}

// Reset empties the set.
func (k *Keys) Reset() { k.n = 0 }

// Trim drops memory beyond what ordinary objects need.
func (k *Keys) Trim() {
	if cap(k.table) > 1<<12 {
		k.table = nil
	}
}

// Add adds the key whose quotes are at open and end and tells whether it was new. Keys are the same
// if they are after unescaping.
func (k *Keys) Add(doc []byte, open, end int, escaped bool) bool {
	added := key{uint32(open), uint32(end), escaped}
	if k.n < len(k.few) {
		for i := range k.few[:k.n] {
			if same(doc, k.few[i], added) {
				return false
			}
		}
		k.few[k.n] = added
		k.n++
		return true
	}
	if k.n == len(k.few) {
		const size = 32
		if cap(k.table) < size {
			k.table = make([]uint64, size)
		}
		k.table = k.table[:size]
		clear(k.table)
		for _, old := range k.few {
			k.insert(doc, old)
		}
	}
	if !k.insert(doc, added) {
		return false
	}
	k.n++
	if k.n > len(k.table)/4*3 {
		k.grow()
	}
	return true
}

// insert puts a key into the table, which has room, and tells whether it was new.
func (k *Keys) insert(doc []byte, added key) bool {
	hash := added.hash(doc)
	mask := uint32(len(k.table) - 1)
	at := hash & mask
	for ; k.table[at] != 0; at = (at + 1) & mask {
		if uint32(k.table[at]>>32) != hash {
			continue
		}
		old := key{open: uint32(k.table[at])}
		end, escaped, _ := String(doc, int(old.open)+1)
		old.end, old.escaped = uint32(end), escaped
		if same(doc, old, added) {
			return false
		}
	}
	k.table[at] = uint64(hash)<<32 | uint64(added.open)
	return true
}

func (k *Keys) grow() {
	old := k.table
	size := 2 * len(old)
	k.table = make([]uint64, size)
	mask := uint32(size - 1)
	for _, e := range old {
		if e == 0 {
			continue
		}
		at := uint32(e>>32) & mask
		for k.table[at] != 0 {
			at = (at + 1) & mask
		}
		k.table[at] = e
	}
}

var seed = maphash.MakeSeed()

func (k key) raw(doc []byte) []byte { return doc[k.open+1 : k.end] }

func (k key) hash(doc []byte) uint32 {
	if !k.escaped {
		return uint32(maphash.Bytes(seed, k.raw(doc)))
	}
	var buf [64]byte
	return uint32(maphash.Bytes(seed, AppendUnescaped(buf[:0], k.raw(doc))))
}

func same(doc []byte, a, b key) bool {
	if !a.escaped && !b.escaped {
		return string(a.raw(doc)) == string(b.raw(doc))
	}
	var bufA, bufB [64]byte
	x, y := a.raw(doc), b.raw(doc)
	if a.escaped {
		x = AppendUnescaped(bufA[:0], x)
	}
	if b.escaped {
		y = AppendUnescaped(bufB[:0], y)
	}
	return string(x) == string(y)
}
