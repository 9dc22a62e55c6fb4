/** A D1 binding with another `batch`. */
export function proxied(database, batch) {
  return new Proxy(database, {
    get(target, name) {
      if (name === "batch") return batch;
      const value = Reflect.get(target, name);
      // The SDK recognises a binding by its constructor's name, so that one must stay as it is.
      return typeof value === "function" && name !== "constructor" ? value.bind(target) : value;
    },
  });
}
