import { mkdtempSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Content } from '../../test/support/ledger.ts'
import type { Grant } from '../../test/support/oracle/realm.ts'
import type { Script } from './talk.ts'

/** What a connection sent and what was known before it: enough to repeat it. */
export interface Finding {
  readonly what: string
  readonly realm: string
  readonly script: Script
  /** What its tokens allow. */
  readonly grants: readonly (readonly [token: string, grant: Grant])[]
  readonly owners: readonly {
    readonly name: string
    readonly token: string
    readonly plants: readonly (readonly [id: string, content: Content])[]
  }[]
}

/** Writes a finding to a file at once, so that it survives the end of the run. */
export function saveFinding(finding: Finding): string {
  const file = join(mkdtempSync(join(tmpdir(), 'plant-store-finding-')), 'finding.json')
  writeFileSync(file, JSON.stringify(finding))
  return file
}

/** Puts a smaller finding in the place of one. */
export function replaceFinding(file: string, finding: Finding): void {
  writeFileSync(`${file}.new`, JSON.stringify(finding))
  renameSync(`${file}.new`, file)
}

export function loadFinding(file: string): Finding {
  // Written by the functions above.
  return JSON.parse(readFileSync(file, 'utf8')) as Finding
}
