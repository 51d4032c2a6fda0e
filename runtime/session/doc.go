// Package session remembers conversations between turns, and lets the turns of one conversation run
// one at a time.
//
// A [Cache] holds, for each [Key], the conversation as seen so far and the values that the adapter
// stored. It is an LRU with limits on entries, bytes and idle time. A turn takes a [Lease] on its
// session (first come, first served), joins the transcript window that the host sent with what is
// remembered, works on the values, commits what was said if it completed, and releases the lease.
//
// # Rules
//
// The contract is lowkey.md, "Sessions" and "Settled readings". What they leave open is settled here:
//
//   - The transcript window is the truth; the cache only extends it backwards. What a turn is shown
//     always ends with the window as it was sent.
//   - Only [Lease.Commit] makes the conversation longer, and only then does a window that contradicts
//     the conversation replace it: after a turn that failed, the conversation is what it was before.
//   - Clearing is the exception: an empty window drops the conversation in [Lease.Join], also if that
//     turn then fails. An empty window contradicts all that was said, and a later window that
//     begins, by chance, with words from the end of the dropped conversation could not be told
//     from one that continues it: what the user took back would be seen again.
//   - Messages without content are not added by Commit, since a transcript has nothing to show for
//     them. A window may hold some; they are kept as sent.
//   - Values outlive replacing and clearing. They go by [Lease.Delete], [Lease.Forget] and eviction.
//   - A session is in use from the moment its lease is held until the lease is released; its idle
//     time counts from the last use. A session in use may be evicted to keep within the limits: its
//     turn does not notice, and what the turn then stores or commits brings the session back whole.
//   - A session that alone is larger than the byte limit is not kept. Its turn works to the end, and
//     the next one is told [adapters.ContinuityEvicted].
//   - The cache knows of a bounded number (65,536) of evicted sessions that they were evicted. One
//     that was dropped longer ago is new when it comes back.
//
// # Memory
//
// Strings that are given to this package may share memory with a request. Nothing of them is kept
// after [Lease.Release]: what enters the cache is copied, once, when it enters.
//
// No lock is held while user code runs, since none does here, and the cache's one mutex is never
// held while conversations are compared or copied: a conversation belongs to whoever holds its lease.
package session
