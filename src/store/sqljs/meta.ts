import type { FileBytes, SqlJs, Value } from 'sql.js'
import { valueOf } from './sqlite.ts'

export interface Meta {
  /** The last journal sequence that the file covers. */
  readonly sequence: number
  /** Whether the file holds everything by itself, with no journal after it. */
  readonly complete: boolean
}

interface FileMeta extends Meta {
  /** The version of the snapshot's format. */
  readonly format: number
}

/** The `meta` table of a database file. @throws Error when the file is no such database. */
export function metaOf(library: SqlJs, bytes: FileBytes): FileMeta {
  const db = new library.Database(bytes)
  try {
    const value = (key: keyof FileMeta): Value | undefined =>
      valueOf(db, `SELECT value FROM meta WHERE key = '${key}'`)
    return {
      format: Number(value('format')),
      sequence: Number(value('sequence')),
      complete: value('complete') === 1,
    }
  } finally {
    db.close()
  }
}
