/*
 * Signals that stop the process. The first that `main.ts` imports: PID 1 loses a signal that it has
 * no listener for. None is removed: Node would lose a signal that has arrived, but is not told yet.
 */

type Take = (name: NodeJS.Signals, number: number) => void

const untaken: Parameters<Take>[] = []
let take: Take = (...signal) => void untaken.push(signal)
const arrived: Take = (name, number) => take(name, number)
for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(name, arrived)

// By default Node would open its inspector, on a port of loopback where every user of the machine
// may run code in this process.
process.on('SIGUSR1', () => {})

/** From now on `by` gets every signal, and those that came before. */
export function takeSignals(by: Take): void {
  take = by
  for (const signal of untaken.splice(0)) take(...signal)
}

/** With the status that shells report for a process that a signal ended. */
export const endAtOnce: Take = (_name, number) => process.exit(128 + number)
