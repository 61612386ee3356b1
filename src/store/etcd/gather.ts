/** Gathers what comes while a call of etcd runs, so that the next call has all of it. */

/**
 * Returns a function that adds an item. `take` gets all that was added when the tick ends, or when
 * it has done with what it got before. It never rejects.
 */
export function gather<T>(take: (items: readonly T[]) => Promise<void> | void): (item: T) => void {
  let waiting: T[] = []
  let isTaking = false
  const takeAll = async (): Promise<void> => {
    while (waiting.length > 0) {
      const items = waiting
      waiting = []
      await take(items)
    }
    isTaking = false
  }
  return (item) => {
    waiting.push(item)
    if (isTaking) return
    isTaking = true
    setImmediate(() => void takeAll())
  }
}
