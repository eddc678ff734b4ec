// Portkey's gateway has no option for the address it listens on and takes all of the machine's. A benchmark stays on the loopback, so a
// listener without a host gets one here, before the gateway loads.
const { Server } = require("node:net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (first, ...rest) {
  if (typeof first === "number") return listen.call(this, { port: first, host: "127.0.0.1" }, ...rest.filter((r) => typeof r === "function"));
  if (first && typeof first === "object" && !first.path) first = { ...first, host: "127.0.0.1" };
  return listen.call(this, first, ...rest);
};
