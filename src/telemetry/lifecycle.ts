import type { Log } from './log.ts'

/** How far a service has come. `draining` begins with a stop, and no state follows it. */
export interface Lifecycle {
  state: 'starting' | 'serving' | 'draining'
}

/** Something to do when a service ends, with its name in the log if it fails. */
export type Step = readonly [name: string, run: () => unknown]

/** Runs the steps in order. After one that fails it goes on: the others must close their parts. */
export async function runSteps(steps: readonly Step[], log: Log): Promise<void> {
  for (const [step, run] of steps) {
    try {
      await run()
    } catch (error) {
      log.error('a step failed, and the others still run', { step, error })
    }
  }
}
