import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const directories: string[] = []
// A process that is being killed may still write.
const REMOVAL = { recursive: true, force: true, maxRetries: 10, retryDelay: 20 } as const
process.on('exit', () => {
  for (const directory of directories) rmSync(directory, REMOVAL)
})

/**
 * A directory that is removed when the process ends: what a test does last, such as checking the
 * store, still finds it.
 */
export function temporaryDirectorySync(parent = tmpdir()): string {
  const directory = mkdtempSync(join(parent, 'plant-store-'))
  directories.push(directory)
  return directory
}

export function temporaryDirectory(): Promise<string> {
  return Promise.resolve(temporaryDirectorySync())
}
