// Package treetest holds the facts about Backline's tree that no compiler checks: who may import whom,
// what a user of plugin links, that documents compile, that public functions have Examples. It has
// tests and nothing else.
package treetest
