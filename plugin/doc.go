// Package plugin hosts adapters as an HTTP server, or as an http.Handler inside a server of yours. It
// is what most programs import:
//
//	err := plugin.Serve(ctx, plugin.Config{ID: "muse", Adapter: myAdapter})
//
// Turns come by Lowkey's protocol, and with [Config.External] by agent.external-runtime as well, from the
// same adapters.
//
// [Serve] runs a server with signals and drain; [New] makes the handler alone. Either way the turns run
// in the engine of package runtime, and a program that imports plugin links no provider's SDK, no
// database driver and no command-line library.
package plugin
