import { mkdtempSync, renameSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Finding } from './worker.ts'

/**
 * Leaves a finding in a file by which it can be repeated, at once: whoever ends the run must not
 * take it away.
 */
export function keepFinding(finding: Finding): string {
  const file = join(mkdtempSync(join(tmpdir(), 'plant-store-finding-')), 'finding.json')
  writeFileSync(file, JSON.stringify(finding))
  return file
}

/** Puts a smaller one in its place. */
export function replaceFinding(file: string, finding: Finding): void {
  writeFileSync(`${file}.new`, JSON.stringify(finding))
  renameSync(`${file}.new`, file)
}
