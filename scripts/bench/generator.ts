import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { FromLoad, LoadResult, LoadSpec } from './load.ts'

/** The load generator's process: one for all runs, whose code is warm after the first. */
export class LoadGenerator {
  readonly #child: ChildProcess

  constructor() {
    this.#child = fork(fileURLToPath(new URL('load.ts', import.meta.url)), {
      // V8's helper threads would share the core with the load.
      execArgv: ['--import', 'tsx', '--expose-gc', '--single-threaded-gc'],
    })
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  /** One run at a time. */
  run(spec: LoadSpec): Promise<LoadResult> {
    const child = this.#child
    const result = new Promise<LoadResult>((resolve, reject) => {
      const ended = (code: unknown): void =>
        reject(new Error(`the load generator ended with ${String(code)}`))
      child.once('exit', ended)
      // The load generator sends nothing else.
      child.once('message', (message: FromLoad) => {
        child.off('exit', ended)
        if ('error' in message) reject(new Error(message.error))
        else resolve(message)
      })
    })
    child.send(spec)
    return result
  }

  /** The process ends when this side disconnects, or ends. */
  close(): void {
    this.#child.disconnect()
  }
}
