import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { FromLoad, LoadSpec, ToLoad } from './load.ts'
import type { LoadResult } from './recorder.ts'

interface Waiting {
  resolve(result: LoadResult): void
  reject(error: Error): void
}

/** A run under way. `stop` ends it before its time. */
export interface Running {
  readonly result: Promise<LoadResult>
  stop(): void
}

/** The load generator's process: one for all runs, whose code is warm after the first. */
export class LoadGenerator {
  readonly #child: ChildProcess
  readonly #waiting = new Map<number, Waiting>()
  #runs = 0

  constructor() {
    this.#child = fork(fileURLToPath(new URL('load.ts', import.meta.url)), {
      // V8's helper threads would share the core with the load.
      execArgv: ['--import', 'tsx', '--expose-gc', '--single-threaded-gc'],
      serialization: 'advanced',
    })
    // The load generator sends nothing else.
    this.#child.on('message', (message: FromLoad) => {
      const waiting = this.#waiting.get(message.id)
      this.#waiting.delete(message.id)
      if ('error' in message) waiting?.reject(new Error(message.error))
      else waiting?.resolve(message.result)
    })
    this.#child.once('exit', (code) => {
      for (const { reject } of this.#waiting.values())
        reject(new Error(`the load generator ended with ${code}`))
    })
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  run(spec: Omit<LoadSpec, 'id'>): Running {
    const id = ++this.#runs
    const send = (message: ToLoad): void => {
      this.#child.send(message)
    }
    const result = new Promise<LoadResult>((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject })
    })
    send({ run: { ...spec, id } })
    return { result, stop: () => send({ stop: id }) }
  }

  /** The process ends when this side disconnects, or ends. */
  close(): void {
    this.#child.disconnect()
  }
}
